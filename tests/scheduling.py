"""Which process runs which file of tests: each keeps to one kind of files, and takes others once those are gone.

Each kind needs servers that a process starts once: a torch that has loaded its compiler, a referee, a service. By kind hardly any of
them is started twice, and what computes runs beside what waits.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from xdist.scheduler import LoadFileScheduling

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

#: Folders of tests by what they need; all other files count to the last kind.
KINDS = (("agent",), ("evaluator", "attacks", "cases", "corpus", "kernelbench_tasks"), ())


def kind(file: str) -> int:
    """Number of a file's kind, by its path from the root."""
    folder = file.split("/")[1:2]
    return next((number for number, folders in enumerate(KINDS) if {*folder} & {*folders}), len(KINDS) - 1)


class ByKind(LoadFileScheduling):
    """Files stay whole, as with `--dist loadfile`."""

    def _assign_work_unit(self, node: WorkerController) -> None:
        self.workqueue.move_to_end(self._next(node), last=False)
        super()._assign_work_unit(node)

    def _next(self, node: WorkerController) -> str:
        """The next file of a process: of its own kind, else of the one that has the most tests left."""
        left: Counter[int] = Counter()
        for file, tests in self.workqueue.items():
            left[kind(file)] += len(tests)
        own = int(node.gateway.id.removeprefix("gw")) % len(KINDS)
        most = own if left[own] else max(left, key=left.__getitem__)
        return next(file for file in self.workqueue if kind(file) == most)
