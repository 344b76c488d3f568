"""The recording: a ranking of submodules by time, and the way from one of them to a task file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch import nn

from evaluator.capture.recording import ModuleCost, Watch, Watched
from evaluator.capture.signature import CaptureError
from evaluator.capture.writing import WrittenTask, write_task

_SHOWN = 20


class Recording:
    """What `capture` recorded; complete when its block has ended."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    @property
    def overhead_s(self) -> float:
        """Seconds that watching itself took; they are not in the times of modules."""
        return self._watch.overhead_s

    @property
    def modules(self) -> list[ModuleCost]:
        """Every submodule that was called, the most expensive first (its own time breaks ties)."""
        called = [watched for watched in self._watch.watched.values() if watched.count]
        whole_s = max((watched.total_s for watched in called), default=0.0)
        costs = [
            ModuleCost(
                watched.names[0],
                type(watched.module).__name__,
                watched.count,
                len(watched.calls),
                watched.total_s,
                watched.self_s,
                watched.total_s / whole_s if whole_s else 0.0,
            )
            for watched in called
        ]
        return sorted(costs, key=lambda cost: (-cost.total_s, -cost.self_s))

    def __str__(self) -> str:
        modules = self.modules
        if not modules:
            return "nothing was called"
        lines = [f"{'share':>6} {'total ms':>10} {'own ms':>10} {'calls':>7} {'shapes':>6}  module"]
        lines += [
            f"{cost.share:6.1%} {cost.total_s * 1e3:10.2f} {cost.self_s * 1e3:10.2f} {cost.calls:7} {cost.shapes:6}  "
            f"{cost.name or '(the model)'} ({cost.type_name})"
            for cost in modules[:_SHOWN]
        ]
        if len(modules) > _SHOWN:
            lines.append(f"... and {len(modules) - _SHOWN} more in `modules`")
        whole_s = modules[0].total_s
        lines.append(
            f"watching took {self.overhead_s * 1e3:.2f} ms besides {whole_s * 1e3:.2f} ms; these times exclude it"
        )
        return "\n".join(lines)

    def write(
        self,
        name: str,
        path: str | Path,
        *,
        keep_weights: str | Path | None = None,
        training: bool = False,
    ) -> WrittenTask:
        """Writes a submodule as a task file that needs none of the code it came from.

        Args:
            name: of the submodule, as the ranking prints it; "" for the model itself. A shared one has several
                names; any works.
            path: the file to write.
            keep_weights: also write the weights to this file (`torch.load` gives a state_dict of the task's
                `Model`). By default only their shapes, dtypes, means and spreads are kept, and small tables of
                integers, flags or constants, without which the module would not be the same.
            training: write it as it works in training mode.

        Raises:
            CaptureError: no such module, it was not called, or it cannot be expressed as one program.
        """
        return write_task(self._find(name), Path(path), keep_weights=keep_weights, training=training)

    def _find(self, name: str) -> Watched:
        for watched in self._watch.watched.values():
            if name in watched.names:
                if not watched.count:
                    raise CaptureError(f"{name or 'the model'!r} was not called while the recording ran")
                return watched
        known = ", ".join(cost.name for cost in self.modules if cost.name)
        raise CaptureError(f"the model has no submodule {name!r}; these were called: {known}")


@contextmanager
def capture(model: nn.Module) -> Iterator[Recording]:
    """Watches `model` while the block runs.

    Args:
        model: any module in eager mode. Modules compiled by torch.compile run without hooks and cannot be
            recorded.

    Yields:
        A recording: print it for the ranking, `write` one of its modules as a task file.

    Raises:
        CaptureError: the module cannot be watched.
    """
    if not isinstance(model, nn.Module):
        raise CaptureError(f"capture takes a torch.nn.Module, not {type(model).__name__}")
    watch = Watch(model)
    watch.install()
    try:
        yield Recording(watch)
    finally:
        watch.remove()
