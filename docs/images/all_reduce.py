"""Draws ring.svg and tree.svg for the page on all-reduce: `python docs/images/all_reduce.py`."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent
RANKS = 4
SHADES = ["#e3eef9", "#b3d3ef", "#78aedd", "#2f79b9"]  # by how many ranks are in a piece
INK, ARROW = "#1b2733", "#c4472b"
CELL, GAP = 34, 58
HEAD = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w} {h}" width="{w}" height="{h}" font-family="sans-serif" fill="{ink}">
<title>{title}</title>
<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" orient="auto">
<path d="M0 0L8 4L0 8z" fill="{arrow}"/></marker></defs>
<rect width="{w}" height="{h}" rx="10" fill="#ffffff"/>
"""


def text(x: float, y: float, words: str, size: int = 12, anchor: str = "middle", weight: str = "normal") -> str:
    """A line of text."""
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" font-weight="{weight}">{words}</text>\n'


def arrow(x1: float, y1: float, x2: float, y2: float, bend: float = 0) -> str:
    """An arrow, bent sideways if it has to go round something."""
    return (
        f'<path d="M{x1:g} {y1:g} Q{(x1 + x2) / 2 + bend:g} {(y1 + y2) / 2:g} {x2:g} {y2:g}" fill="none" stroke="{ARROW}" '
        'stroke-width="1.8" marker-end="url(#tip)"/>\n'
    )


def board(left: float, top: float, holds: list[list[int]], title: str) -> str:
    """One moment: a row for each rank, a column for each piece, shaded by how many ranks' numbers are in it."""
    drawn = text(left + RANKS * CELL / 2, top - 12, title, 12, weight="bold")
    for rank, row in enumerate(holds):
        for piece, ranks in enumerate(row):
            x, y = left + piece * CELL, top + rank * CELL
            white = ' fill="#ffffff"' if ranks == RANKS else ""
            drawn += f'<rect x="{x:g}" y="{y:g}" width="{CELL}" height="{CELL}" fill="{SHADES[ranks - 1]}" '
            drawn += 'stroke="#ffffff" stroke-width="2"/>\n'
            drawn += f'<g{white}>{text(x + CELL / 2, y + CELL / 2 + 4, str(ranks))}</g>'
    return drawn


def moments() -> list[tuple[list[list[int]], list[tuple[int, int]]]]:
    """What every rank holds at each moment of the ring, and which piece each rank then sends to the next."""
    holds = [[1] * RANKS for _ in range(RANKS)]
    found = []
    for step in range(2 * (RANKS - 1)):
        sends = [(rank, (rank - step) % RANKS) for rank in range(RANKS)]  # the all-gather goes on where the sums have ended
        found.append(([row[:] for row in holds], sends))
        before = [row[:] for row in holds]
        for rank, piece in sends:
            there = (rank + 1) % RANKS
            holds[there][piece] = before[rank][piece] + (before[there][piece] if step < RANKS - 1 else 0)
    return [*found, (holds, [])]


def ring() -> str:
    """The ring: seven moments in two rows, reduce-scatter above, all-gather below."""
    top, left, high = 92, 86, RANKS * CELL + 74
    columns = 4
    width, height = left + columns * (RANKS * CELL + GAP), top + 2 * high - 44
    drawn = HEAD.format(w=width, h=height, ink=INK, arrow=ARROW, title="Ring all-reduce of four ranks")
    drawn += text(24, 34, "Ring, four ranks: each number says how many ranks are in a piece of the array", 15, "start", "bold")
    for number, (holds, sends) in enumerate(moments()):
        row, column = (0, number) if number < columns else (1, number - columns)
        x, y = left + column * (RANKS * CELL + GAP), top + row * high
        title = {0: "start", 3: "after step 3: scattered", 6: "after step 6: all have all"}.get(number, f"after step {number}")
        if column == 0:
            drawn += "".join(text(x - 12, y + rank * CELL + CELL / 2 + 4, f"rank {rank}", 12, "end") for rank in range(RANKS))
        drawn += board(x, y, holds, title)
        for rank, piece in sends:
            cx = x + piece * CELL + CELL / 2 + 9
            if rank + 1 < RANKS:
                drawn += arrow(cx, y + rank * CELL + CELL - 10, cx, y + (rank + 1) * CELL + 9)
            else:  # from the last row back to the first, round the outside
                edge, bottom = x + RANKS * CELL + 3, y + RANKS * CELL
                way = f"M{cx:g} {bottom - 6:g} V{bottom + 10:g} H{edge + 15:g} V{y + CELL / 2:g} H{edge:g}"
                drawn += f'<path d="{way}" fill="none" stroke="{ARROW}" stroke-width="1.4" stroke-dasharray="4 3" '
                drawn += 'marker-end="url(#tip)"/>\n'
    return drawn + "</svg>\n"


def node(x: float, y: float, words: str) -> str:
    """A rank of the tree."""
    return f'<circle cx="{x:g}" cy="{y:g}" r="19" fill="{SHADES[1]}" stroke="{INK}"/>\n' + text(x, y + 5, words, 14)


def half(left: float, title: str, parents: dict[int, int], places: dict[int, tuple[float, float]], up: bool) -> str:
    """One direction through a tree of ranks."""
    drawn = text(left + 200, 76, title, 13, weight="bold")
    for child, parent in parents.items():
        (x1, y1), (x2, y2) = places[child], places[parent]
        length = ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5
        dx, dy = (x2 - x1) / length * 22, (y2 - y1) / length * 22
        ends = (x1 + dx, y1 + dy, x2 - dx, y2 - dy) if up else (x2 - dx, y2 - dy, x1 + dx, y1 + dy)
        drawn += arrow(*(value + (left if index % 2 == 0 else 0) for index, value in enumerate(ends)))
    return drawn + "".join(node(left + x, y, str(rank)) for rank, (x, y) in places.items())


def tree() -> str:
    """The tree of eight ranks: sums go up, the result comes down."""
    leaves = {1: (45.0, 275.0), 3: (145.0, 275.0), 5: (235.0, 275.0), 7: (335.0, 275.0)}
    at = {0: (330.0, 110.0), 4: (190.0, 160.0), 2: (95.0, 215.0), 6: (285.0, 215.0), **leaves}
    parents = {4: 0, 2: 4, 6: 4, 1: 2, 3: 2, 5: 6, 7: 6}
    drawn = HEAD.format(w=820, h=330, ink=INK, arrow=ARROW, title="Tree all-reduce of eight ranks")
    drawn += text(24, 34, "Tree, eight ranks: sums go up, the result comes down, piece after piece", 15, "start", "bold")
    drawn += half(10, "up: each adds what its children send", parents, at, True)
    drawn += half(410, "down: each passes the result on", parents, at, False)
    return drawn + "</svg>\n"


if __name__ == "__main__":
    (HERE / "ring.svg").write_text(ring())
    (HERE / "tree.svg").write_text(tree())
