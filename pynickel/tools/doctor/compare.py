"""Under a launcher: what the ranks' findings have in common is left out, and what differs is shown rank by rank."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Sequence

from .finding import PROBLEM, Finding


def differing(by_rank: Sequence[Sequence[Finding]]) -> list[tuple[str, dict[str, list[int]]]]:
    """For each topic on which not all ranks agree: its texts, with the ranks that found them."""
    topics: dict[str, None] = {}
    for findings in by_rank:
        for finding in findings:
            topics[finding.topic] = None
    found = []
    for topic in topics:
        texts: dict[str, list[int]] = {}
        lines = [sorted(f"{one.level}: {one.text}" for one in findings if one.topic == topic) for findings in by_rank]
        common = set(lines[0]).intersection(*lines[1:])
        for rank, mine in enumerate(lines):
            own = [line for line in mine if line not in common]
            texts.setdefault("; ".join(own) or "nothing of the kind", []).append(rank)
        if len(texts) > 1:
            found.append((topic, texts))
    return found


def report(by_rank: Sequence[Sequence[Finding]]) -> list[str]:
    """The lines for rank 0 to print."""
    lines = []
    for topic, texts in differing(by_rank):
        lines.append(f"{topic} differs:")
        lines += [f"  {ranks(found)}: {text}" for text, found in texts.items()]
    problems: dict[Finding, list[int]] = {}
    for rank, findings in enumerate(by_rank):
        for finding in findings:
            if finding.level == PROBLEM:
                problems.setdefault(finding, []).append(rank)
    for finding, found in problems.items():
        lines.append(f"problem on {ranks(found)}: {finding.topic}: {finding.text}")
        lines.append(f"  remedy: {finding.remedy}")
    return lines or [f"all {len(by_rank)} ranks agree, and none has a problem"]


def ranks(found: Sequence[int]) -> str:
    """Ranks in words, with runs shortened: "ranks 0-3, 7"."""
    runs: list[list[int]] = []
    for rank in sorted(found):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    text = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
    return f"rank {text}" if len(found) == 1 else f"ranks {text}"
