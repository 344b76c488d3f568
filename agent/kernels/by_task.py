"""Kernels for tasks of the catalogue that no formula about rows describes: one candidate per task and device.

They lie in `tasks/<task>/`, `cpp.py` for the CPU and `triton.py` for the GPU. A task is known by its text: a
file of the catalogue, submitted under any name, gets the kernel that was written for it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from agent.kernels.writing import joined
from evaluator.sources import sha256_of
from kernelbench_tasks import catalog

_FOLDER = Path(__file__).resolve().parent / "tasks"
_FILES = {"cpu": "cpp.py", "cuda": "triton.py"}
#: Where a file imports from one of these, a candidate gets that file's text, since it has to stand alone.
_SHARED = re.compile(r"^from agent\.kernels\.(gpu|tasks)\.(launching|building) import .*\n", re.MULTILINE)


@dataclass(frozen=True)
class TaskKernel:
    """A candidate file for one task of the catalogue.

    Attributes:
        task: name of the task.
        device: "cpu" or "cuda", for which it was written. (Triton's can be checked on a CPU, too, by an interpreter.)
        path: the file.
    """

    task: str
    device: str
    path: Path

    @property
    def source(self) -> str:
        """The candidate's text, which stands alone."""
        text = self.path.read_text(encoding="utf-8")
        found = _SHARED.search(text)
        if found is None:
            return text
        before, after = text[: found.start()].rstrip(), text[found.end() :].lstrip()
        imports, _, shared = joined(found[1], (f"{found[2]}.py",)).partition("\n\n\n")
        more = [line for line in imports.splitlines() if line not in before.splitlines()]
        return "\n".join([before, *more]) + f"\n\n\n{shared}\n\n{after}"


def list_task_kernels() -> tuple[TaskKernel, ...]:
    """All of them, by task and device."""
    return tuple(
        TaskKernel(folder.name, device, folder / name)
        for folder in sorted(path for path in _FOLDER.iterdir() if path.is_dir())
        for device, name in _FILES.items()
        if (folder / name).is_file()
    )


def find_task_kernel(task_source: str, device: str) -> TaskKernel | None:
    """The kernel for a task with exactly this text on a device, or None."""
    task = catalog.find_by_sha256(sha256_of(task_source))
    if task is None:
        return None
    found = [k for k in list_task_kernels() if (k.task, k.device) == (task.name, device)]
    return found[0] if found else None
