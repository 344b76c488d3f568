"""An import: lint and shape inference of each file, in the referee's sandbox, then all that are sound are registered at once.

What was found of a file is kept in a journal: an import that was stopped goes on where it was, and files that did not change are
not looked at again.
"""

from __future__ import annotations

import fcntl
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from evaluator.environment import harness_digest
from evaluator.errors import EvaluatorError, RefereeLost
from evaluator.sources import TaskSource, sha256_of
from services.catalogue import registry
from services.catalogue.checkout import TaskFile
from services.catalogue.report import report_page

#: Of texts that fetch weights or code when they run.
_DOWNLOADS = re.compile(
    r"\b(from_pretrained|hf_hub_download|snapshot_download|load_state_dict_from_url|urlretrieve|urlopen)\s*\("
    r"|\btorch\.hub\.load"
)
_DOWNLOAD = "it needs a download (weights or code from the network), and tasks run without a network"
_DEADLINE_S = 180.0
#: Findings of a file that cannot be told from what a missing network does to it.
_MAY_BE_NETWORK = (
    "needs_network",
    "needs_package",
    "needs_files",
    "fails",
    "too_slow",
    "too_large",
    "contract",
)

Progress = Callable[[int, int, str], None]


class Lints(Protocol):
    """The part of :class:`evaluator.client.Referee` that an import needs."""

    def lint(self, task: TaskSource, *, fresh: bool = False, deadline_s: float = 120.0) -> dict[str, Any]:
        """See there."""
        ...

    def restart(self) -> None:
        """See there."""
        ...


@dataclass(frozen=True)
class Imported:
    """What came of an import.

    Attributes:
        folder: of the registered tasks and the two reports.
        counts: files by state: ``sound``, ``marked``, ``refused`` and ``unknown``.
    """

    folder: Path
    counts: Counter[str]


def run(files: list[TaskFile], referee: Lints, device: str, data_dir: Path, progress: Progress) -> Imported:
    """Looks at every file and registers those that are sound or only marked.

    Args:
        files: of the checkout.
        referee: where their code runs.
        device: of the referee.
        data_dir: see :func:`services.catalogue.registry.folder`.
        progress: told files done, files in all, and the name of the next one.
    """
    rows: list[dict[str, Any]] = []
    with _Journal(registry.folder(data_dir).with_name("kernelbench.jsonl"), device) as journal:
        for done, file in enumerate(files):
            progress(done, len(files), file.name)
            rows.append(_row(file, referee, journal))
        progress(len(files), len(files), "")
    tasks = [
        registry.ImportedTask(
            row["name"],
            row["level"],
            row["file"],
            sha256_of(row["source"]),
            f"level{row['level']}/{row['name']}.py",
        )
        for row in rows
        if row["state"] in ("sound", "marked")
    ]
    texts = {row["name"]: row["source"] for row in rows}
    shown = [{name: value for name, value in row.items() if name != "source"} for row in rows]
    counts = Counter(row["state"] for row in rows)
    reports = {
        "report.json": json.dumps({"device": device, "counts": counts, "tasks": shown}, indent=1),
        "report.html": report_page(shown, counts, device),
    }
    return Imported(registry.replace(data_dir, tasks, texts, reports), counts)


def _row(file: TaskFile, referee: Lints, journal: _Journal) -> dict[str, Any]:
    row: dict[str, Any] = {"name": file.name, "level": file.level, "file": file.path.name, "source": ""}
    nothing: dict[str, Any] = {"state": "refused", "findings": [], "inferred": None, "elapsed_s": 0.0}
    try:
        text = file.read()
    except (OSError, ValueError) as error:
        return row | nothing | {"reason": f"it cannot be read: {str(error)[:200]}"}
    found = journal.get(file.name, sha256_of(text))
    if found is None:
        found = _looked_at(TaskSource(file.name, text), referee)
        journal.put(file.name, sha256_of(text), found)
    return row | found


def _looked_at(task: TaskSource, referee: Lints) -> dict[str, Any]:
    """State, reason, findings, space and text of one file."""
    try:
        report = _lint(task, referee)
    except EvaluatorError as error:
        return {
            "state": "unknown", "reason": f"the referee could not look at it: {str(error)[:300]}", "findings": [],
            "inferred": None, "elapsed_s": 0.0, "source": "",
        }  # fmt: skip
    rules = {finding["rule"] for finding in report["findings"] if finding["severity"] == "error"}
    reason = report["reason"]
    if rules & set(_MAY_BE_NETWORK) and _DOWNLOADS.search(task.source):
        state, reason = "refused", _DOWNLOAD
    elif report["ok"]:
        state = "marked" if report["findings"] else "sound"
    else:
        state = "refused" if report["verdict"] == "task_rejected" else "unknown"
    return {
        "state": state, "reason": reason, "findings": report["findings"], "inferred": report["inferred"],
        "elapsed_s": report["elapsed_s"], "source": report["source"],
    }  # fmt: skip


def _lint(task: TaskSource, referee: Lints) -> dict[str, Any]:
    try:
        return referee.lint(task, deadline_s=_DEADLINE_S)
    except RefereeLost:
        referee.restart()
        return referee.lint(task, deadline_s=_DEADLINE_S)


class _Journal:
    """What is known of files, by their texts; one JSON line each, written as soon as it is known.

    Args:
        path: of the file.
        device: on which files are looked at; what another device said is not used.
    """

    def __init__(self, path: Path, device: str) -> None:
        self._path = path
        self._place = [device, harness_digest()]
        self._known: dict[tuple[str, str], dict[str, Any]] = {}

    def __enter__(self) -> _Journal:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._path.open("a", encoding="utf-8")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise OSError("another import is running here") from None
        self._known = dict(self._read())
        # What a killed process left of a line ends here.
        self._file.write("\n")
        return self

    def __exit__(self, *exc: object) -> None:
        self._file.close()

    def _read(self) -> Iterator[tuple[tuple[str, str], dict[str, Any]]]:
        with suppress(OSError), self._path.open(encoding="utf-8") as file:
            for line in file:
                with suppress(ValueError, KeyError, TypeError):
                    fields = json.loads(line)
                    if fields["place"] == self._place:
                        yield (fields["name"], fields["sha256"]), fields["found"]

    def get(self, name: str, sha256: str) -> dict[str, Any] | None:
        """What was found of a file."""
        return self._known.get((name, sha256))

    def put(self, name: str, sha256: str, found: dict[str, Any]) -> None:
        """Keeps what was found, unless the machine was to blame."""
        if found["state"] == "unknown":
            return
        line = {"name": name, "sha256": sha256, "place": self._place, "found": found}
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
