"""Lowers generated modules by the compiler to candidate files: Inductor's C++ for a CPU, its Triton for a GPU.

The agent's `agent.compiler.inductor` builds the files from the unmodified compiler output. A module without such a file is left out
with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from agent.compiler.inductor import inductor_source
from agent.errors import ProposalFailed
from evaluator.client import Referee
from evaluator.errors import RefereeLost
from evaluator.sources import TaskSource
from rl.data.meaning import meaning_of
from rl.data.modules import VERSION, generate, task_of
from rl.data.proposals import Proposal
from rl.errors import RLError

_TRACING = Path(__file__).parent / "trace_program.py"
_TRACE_DEADLINE_S = 120.0


class NotMade(RLError):
    """No candidate can be made; the message says why. A retry would fail the same way."""


class Workshop:
    """A referee used only for its sandbox, which runs the compiler and inspects tasks; a context manager.

    It belongs to the thread that creates it: a referee's processes end with that thread.

    Raises:
        SandboxUnavailable: this machine cannot isolate untrusted code.
    """

    def __init__(self, device: str, work_dir: Path | None = None) -> None:
        self.device = device
        self._referee = Referee(device, work_dir=work_dir)

    def __enter__(self) -> Workshop:
        return self

    def __exit__(self, *_: object) -> None:
        self._referee.close()

    @contextmanager
    def _restarted(self) -> Iterator[None]:
        try:
            yield
        except RefereeLost:
            self._referee.restart()
            raise

    def lower(self, task: TaskSource, dims: Mapping[str, Any]) -> str:
        """Make the candidate file of a task.

        Raises:
            NotMade: the compiler's code is not self-contained.
            RefereeLost: the referee died and has been restarted.
        """
        try:
            with self._restarted():
                return inductor_source(self._referee, task, dims, self.device)
        except ProposalFailed as error:
            raise NotMade(str(error)) from None

    def meaning_of(self, task: TaskSource) -> str:
        """The digest of what a task computes, see `rl.data.meaning`; "" if it has none.

        Raises:
            RefereeLost: the referee died and has been restarted.
        """
        with self._restarted():
            files = {"task.py": task.source}
            program = _TRACING.read_text(encoding="utf-8")
            result = self._referee.run_tool(program, files, deadline_s=_TRACE_DEADLINE_S)
        return meaning_of(result.outputs.get("graphs.json", b"")) if result.status == "ok" else ""

    def dims_of(self, task: TaskSource) -> Mapping[str, Any]:
        """A task's space, as `Referee.describe` returns it.

        Raises:
            NotMade: the referee refuses the task.
            RefereeLost: the referee died and has been restarted.
        """
        with self._restarted():
            described = self._referee.describe(task)
        if not described.ok:
            raise NotMade(f"the task is refused: {described.reason}")
        return described.dims


def lowered(workshop: Workshop, seed: int, count: int) -> Iterator[Proposal]:
    """The first `count` modules of a seed; making a file raises the errors of `Workshop.lower`."""
    for index in range(count):
        module = generate(seed, index)
        task = task_of(module)
        dims = {dim: size.as_dict() for dim, size in module.dims}
        yield Proposal(
            id=f"compiled/{workshop.device}/{VERSION}.{seed}/{index}",
            task=task,
            device=workshop.device,
            make=partial(workshop.lower, task, dims),
            origin="compiler",
            source="compiled",
            about={"seed": seed, "index": index, "generator": VERSION},
            dims=dims,
            operations=module.operations,
        )
