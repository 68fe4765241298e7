"""The pytest side: a marker that runs a test's body on every rank, its communicator, and `run` as a fixture. Loads nothing until used."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from . import body, ranks
from .outcome import RankError
from .travel import sent

MARKER = "nickel_ranks"
HELP = (
    f"{MARKER}(n, *more, ranks='processes', timeout={ranks.TIMEOUT:g}, library='host', env=None): run the test's body on n ranks, "
    "each with its communicator in the fixture nickel_comm; several numbers make several tests (pynickel)"
)


class RankCommunicator:
    """Stands in a marked test's arguments for the communicator that each rank will have."""


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line("markers", HELP)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each number of ranks, if the marker has several."""
    marker = metafunc.definition.get_closest_marker(MARKER)
    if marker is not None and len(marker.args) > 1:
        metafunc.fixturenames.append("nickel_nranks")
        metafunc.parametrize("nickel_nranks", marker.args, ids=lambda n: f"{n} ranks")


@pytest.fixture
def nickel_nranks(request: pytest.FixtureRequest) -> int:
    """How many ranks a marked test runs on."""
    marker = marker_of(request.node)
    return int(marker.args[0])


@pytest.fixture
def nickel_comm(request: pytest.FixtureRequest) -> Any:
    """In a test marked `nickel_ranks(n)`, whose body runs on n ranks: this rank's Communicator, of n ranks of the CPU library."""
    marker_of(request.node)
    return RankCommunicator()


@pytest.fixture
def nickel_run() -> Callable[..., list[Any]]:
    """pynickel.testing.run; pytest.skip() and pytest.xfail() in the ranks' function are the test's own."""
    return run


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run the body of a marked test on its ranks, with what its other fixtures gave."""
    if pyfuncitem.get_closest_marker(MARKER) is None:
        return None
    marker = marker_of(pyfuncitem)
    n = pyfuncitem.funcargs.get("nickel_nranks", marker.args[0])
    names = [name for name in inspect.signature(pyfuncitem.obj).parameters if name in pyfuncitem.funcargs]
    given = {name: pyfuncitem.funcargs[name] for name in names}
    wanted = [name for name in names if isinstance(given[name], RankCommunicator)]
    others = {name: value for name, value in given.items() if name not in wanted}
    refuse_what_stays_here(others)
    failed = None
    try:
        reported(ranks.run, n, body.marked, pyfuncitem.obj, others, wanted, **marker.kwargs)
    except RankError as error:
        failed = str(error)
    if failed is not None:
        pytest.fail(failed, pytrace=False)
    return True


def run(n: int, function: Callable[..., Any], *args: Any, **options: Any) -> list[Any]:
    """pynickel.testing.run, with pytest.skip() and pytest.xfail() as the test's own."""
    __tracebackhide__ = True
    if options.get("communicator", True):
        return reported(ranks.run, n, body.call, function, *args, **options)
    return ranks.run(n, function, *args, **options)


def reported(call: Callable[..., list[Any]], *args: Any, **options: Any) -> list[Any]:
    """The call; if the first rank to end badly did so by skip or xfail, that becomes of the test."""
    __tracebackhide__ = True
    try:
        return call(*args, **options)
    except RankError as error:
        verdict = error.first.error
        if not isinstance(verdict, body.Verdict):
            raise
    if verdict.what == "skip":
        pytest.skip(verdict.reason)
    pytest.xfail(verdict.reason)


def refuse_what_stays_here(given: dict[str, Any]) -> None:
    """Name the fixture whose value cannot go to the ranks."""
    for name, value in given.items():
        reason: BaseException | None = None
        try:
            sent(repr, (value,))
        except TypeError as error:
            reason = error.__cause__
        if reason is not None:
            pytest.fail(
                f"fixture {name!r} gives a {type(value).__name__}, which cannot be sent to the ranks ({reason}); make it in the "
                "test's body, or use the fixture nickel_run",
                pytrace=False,
            )


def marker_of(node: Any) -> pytest.Mark:
    """The test's marker; an error in words if it has none or a wrong one."""
    marker: pytest.Mark | None = node.get_closest_marker(MARKER)
    if marker is None:
        pytest.fail(f"nickel_comm is for tests that run on ranks; mark the test with @pytest.mark.{MARKER}(n)", pytrace=False)
    known = {"ranks", "timeout", "library", "env"}
    if not marker.args or any(type(n) is not int or n < 1 for n in marker.args) or set(marker.kwargs) - known:
        said = ", ".join([*map(repr, marker.args), *(f"{name}={value!r}" for name, value in marker.kwargs.items())])
        pytest.fail(f"@pytest.mark.{MARKER}({said}): expected {HELP.partition(':')[0]}, n at least 1", pytrace=False)
    return marker
