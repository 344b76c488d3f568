"""The corpora that prove the referee, as data: what each file of `bugs/` and `controls/` says of itself in its first lines.

# task: softmax                 a task of the catalogue, or a file of `tasks/`
# slip: tail mask missing       bugs only: what is wrong
# only: cuda                    it shows, or works, only there
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from evaluator.sources import CandidateSource, TaskSource
from kernelbench_tasks import catalog

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Entry:
    """One candidate of a corpus.

    Attributes:
        name: unique in its corpus.
        task: name of its task.
        source: the candidate file's text.
        kind: the slip of a bug, the style of a control.
        only: ``cuda`` or ``cpu`` where it can be judged on one device alone, else empty.
    """

    name: str
    task: str
    source: str
    kind: str
    only: str = ""

    @property
    def language(self) -> str:
        """``triton``, ``cpp`` or ``torch``."""
        if re.search(r"^import triton$", self.source, re.MULTILINE):
            return "triton"
        return "cpp" if "load_inline" in self.source else "torch"

    @property
    def compiles(self) -> bool:
        """Whether a compiler runs for it on a CPU, which takes many seconds."""
        return self.language == "cpp" or "torch.compile" in self.source

    @property
    def candidate(self) -> CandidateSource:
        """For the referee."""
        return CandidateSource(self.source, "external", self.name)

    def runs_on(self, device: str) -> bool:
        """Whether it can be judged there."""
        if self.language == "cpp" and device != "cpu":
            return False
        return self.only in ("", device)


@cache
def task(name: str) -> TaskSource:
    """A task by name: of `tasks/` here, else of the catalogue."""
    path = HERE / "tasks" / f"{name}.py"
    if path.exists():
        return TaskSource(name, path.read_text(encoding="utf-8"))
    return TaskSource(name, catalog.load(name).source)


def read(path: Path, kind: str) -> Entry:
    """An entry from a file whose first lines name its task and, after the word ``kind``, what it is about."""
    source = path.read_text(encoding="utf-8")
    fields = dict(re.findall(r"^# (task|slip|style|only): (.+)$", source, re.MULTILINE))
    return Entry(path.stem, fields["task"], source, fields[kind], fields.get("only", ""))


def bugs() -> list[Entry]:
    """Every wrong kernel, ordered by task, so that a warm session serves all of one task."""
    entries = [read(path, "slip") for path in sorted((HERE / "bugs").glob("*.py"))]
    return sorted(entries, key=lambda entry: (entry.task, entry.name))
