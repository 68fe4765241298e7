"""Which process of pytest-xdist gets which tests: those that share what is dear to make stay together, the others go where one is free."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from pathlib import Path
from typing import Any

from xdist.scheduler import LoadScopeScheduling

# Files whose tests share a build, an installation, ranks with torch; those with one name share it with each other.
SHARING = {
    "test_host_sanitizers.py": "builds with sanitizers", "test_launchers.py": "MPI and Slurm", "test_packaging.py": "a wheel",
    "test_torch_process_group.py": "four ranks of torch", "test_training_examples.py": "experiments", "test_typing.py": "mypy's cache",
    "test_data_parallel.py": "claims on torch", "test_training_torch.py": "claims on torch",
}  # fmt: skip


class Sharing(LoadScopeScheduling):  # type: ignore[misc]  # xdist's types are its own
    """A process that a test has ended costs that test only.

    LoadScopeScheduling gives the test to the next process, which it ends too, and a process that comes later waits with its
    last test for another one; so the whole run would hang in the end, and not say why. Nor may two that have come later begin together.
    """

    def _split_scope(self, nodeid: str) -> str:
        return SHARING.get(Path(nodeid.partition("::")[0]).name, nodeid)

    def remove_node(self, node: Any) -> str | None:
        """The test that ended this process, if one did; what else it had goes back to the queue."""
        left = {scope: unit for scope, unit in self.assigned_work.pop(node).items() if not all(unit.values())}
        crashed = next((test for unit in left.values() for test, over in unit.items() if not over), None)
        if crashed is not None:
            scope = self._split_scope(crashed)
            left[scope][crashed] = True
            if all(left[scope].values()):
                del left[scope]
        self.workqueue.update(left)
        for other in self.nodes:
            self._reschedule(other)
        return crashed

    def _reschedule(self, node: Any) -> None:
        """More tests for a process, if it knows by now which tests there are."""
        if node in self.registered_collections:
            super()._reschedule(node)

    def _assign_work_unit(self, node: Any) -> None:
        """The first unit of the queue for a process; it stays in the queue if that process is gone, which xdist has yet to be told."""
        scope, unit = next(iter(self.workqueue.items()))
        try:
            super()._assign_work_unit(node)
        except OSError:
            del self.assigned_work[node][scope]
            self.workqueue[scope] = unit
            self.workqueue.move_to_end(scope, last=False)

    def schedule(self) -> None:
        """A process begins a test when it has the next one, or knows that there is none; one that has come later is told, too."""
        super().schedule()
        for node in self.nodes:
            self._reschedule(node)
