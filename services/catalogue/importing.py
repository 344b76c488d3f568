"""Imports tasks: lint and shape inference of each file, in the sandboxes of several parallel referees.

Sound tasks are registered every few seconds and can be used while the import continues. A journal keeps the results: a
stopped import resumes where it was, and unchanged files are not checked again.
"""

from __future__ import annotations

import fcntl
import json
import queue
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from agent import pages
from evaluator.description import LintReport
from evaluator.environment import harness_digest
from evaluator.errors import EvaluatorError, RefereeLost
from evaluator.shapes.inference.declaring import told
from evaluator.shapes.inference.result import Inferred
from evaluator.sources import TaskSource, sha256_of
from services.catalogue import registry
from services.catalogue.checkout import TaskFile

#: Matches source that downloads weights or code when it runs.
_DOWNLOADS = re.compile(
    r"\b(from_pretrained|hf_hub_download|snapshot_download|load_state_dict_from_url|urlretrieve|urlopen)\s*\("
    r"|\btorch\.hub\.load"
)
_DOWNLOAD = "it needs a download (weights or code from the network), and tasks run without a network"
_DEADLINE_S = 180.0
#: Findings that the missing network may have caused.
_MAY_BE_NETWORK = (
    "needs_network",
    "needs_package",
    "needs_files",
    "fails",
    "too_slow",
    "too_large",
    "contract",
)

#: Interval between registrations of the results so far.
_REGISTER_EVERY_S = 5.0

#: The report's wording for each state.
_STATES = {
    "sound": "registered",
    "marked": "registered with remarks",
    "refused": "refused",
    "unknown": "could not be looked at",
}

Progress = Callable[[int, int, str], None]


class Lints(Protocol):
    """The part of :class:`evaluator.client.Referee` that an import needs."""

    def lint(self, task: TaskSource, *, fresh: bool = False, deadline_s: float = 120.0) -> LintReport:
        """See `Referee.lint`."""
        ...

    def restart(self) -> None:
        """See `Referee.restart`."""
        ...


@dataclass(frozen=True)
class Imported:
    """The result of an import.

    Attributes:
        folder: contains the registered tasks and the two reports.
        counts: number of files by state: ``sound``, ``marked``, ``refused`` and ``unknown``.
    """

    folder: Path
    counts: Counter[str]


#: Starts a referee, in the thread that will use it.
Start = Callable[[], Lints]


def run(
    files: Sequence[TaskFile], starts: Sequence[Start], device: str, data_dir: Path, progress: Progress
) -> Imported:
    """Check every file and register the sound and the marked ones, even if the import is stopped early.

    Args:
        files: the files of the checkout.
        starts: one start function per parallel referee.
        device: the device of the referees.
        data_dir: see :func:`services.catalogue.registry.folder`.
        progress: called with the files done, the total, and the name of the file being started.

    Raises:
        EvaluatorError: no referee could be started.
    """
    rows: dict[str, dict[str, Any]] = {}
    with _Journal(registry.folder(data_dir).with_name("kernelbench.jsonl"), device) as journal:
        todo: list[tuple[TaskFile, str]] = []
        for file in files:
            row, text = _known(file, journal)
            if row is None:
                todo.append((file, text))
            else:
                rows[file.name] = row
        before = _registered(data_dir, files)
        registered_s, fresh = time.monotonic(), 0
        looks = _looks(todo, starts)
        try:
            for file, text, found in looks:
                if found is None:
                    progress(len(rows), len(files), file.name)
                    continue
                journal.put(file.name, sha256_of(text), found)
                rows[file.name] = _row(file) | found
                fresh += 1
                if time.monotonic() - registered_s > _REGISTER_EVERY_S:
                    _register(files, rows, device, data_dir, before)
                    registered_s, fresh = time.monotonic(), 0
        except BaseException:
            if fresh:
                _register(files, rows, device, data_dir, before)
            raise
        finally:
            looks.close()
        progress(len(files), len(files), "")
    return _register(files, rows, device, data_dir, {})


def _registered(data_dir: Path, files: Sequence[TaskFile]) -> dict[str, tuple[registry.ImportedTask, str]]:
    """Tasks and texts that an earlier import registered for these files, by name; kept until a new result replaces them."""
    names = {file.name for file in files}
    found = {}
    for task in registry.list_tasks(data_dir):
        known = registry.load(data_dir, task.name) if task.name in names else None
        if known is not None:
            found[task.name] = (task, known.source)
    return found


def _register(
    files: Sequence[TaskFile],
    rows: Mapping[str, dict[str, Any]],
    device: str,
    data_dir: Path,
    before: Mapping[str, tuple[registry.ImportedTask, str]],
) -> Imported:
    """Register the usable tasks so far and write the reports."""
    ordered = [rows[file.name] for file in files if file.name in rows]
    tasks: list[registry.ImportedTask] = []
    texts: dict[str, str] = {}
    for file in files:
        row = rows.get(file.name)
        if row is None and file.name in before:
            task, texts[file.name] = before[file.name]
            tasks.append(task)
        elif row is not None and row["state"] in ("sound", "marked"):
            texts[file.name] = row["source"]
            path = f"level{row['level']}/{row['name']}.py"
            tasks.append(
                registry.ImportedTask(row["name"], row["level"], row["file"], sha256_of(row["source"]), path)
            )
    shown = [{name: value for name, value in row.items() if name != "source"} for row in ordered]
    counts = Counter(row["state"] for row in ordered)
    reports = {
        "report.json": json.dumps({"device": device, "counts": counts, "tasks": shown}, indent=1),
        "report.html": _report_page(shown, counts, device),
    }
    return Imported(registry.replace(data_dir, tasks, texts, reports), counts)


def _report_page(rows: Sequence[Mapping[str, Any]], counts: Mapping[str, int], device: str) -> str:
    """Render one self-contained page; all values are untrusted and escaped."""
    template = pages.environment(Path(__file__).parent / "templates").get_template("report.html")
    return template.render(rows=rows, counts=counts, device=device, states=_STATES, told=_told)


def _told(inferred: Mapping[str, Any] | None) -> list[str]:
    return told(Inferred.from_json(inferred)) if inferred else []


def _row(file: TaskFile) -> dict[str, Any]:
    return {"name": file.name, "level": file.level, "file": file.path.name, "source": ""}


def _known(file: TaskFile, journal: _Journal) -> tuple[dict[str, Any] | None, str]:
    """The result for an unreadable or unchanged file, else None; and the file's text."""
    nothing: dict[str, Any] = {"state": "refused", "findings": [], "inferred": None, "elapsed_s": 0.0}
    try:
        text = file.read()
    except (OSError, ValueError) as error:
        return _row(file) | nothing | {"reason": f"it cannot be read: {str(error)[:200]}"}, ""
    found = journal.get(file.name, sha256_of(text))
    return None if found is None else _row(file) | found, text


def _looks(
    todo: Sequence[tuple[TaskFile, str]], starts: Sequence[Start]
) -> Generator[tuple[TaskFile, str, dict[str, Any] | None]]:
    """Yield each file and its text twice: with None when its check starts, with the result when it ends."""
    files, said = iter(todo), queue.SimpleQueue[Any]()
    guard, stopping = threading.Lock(), threading.Event()

    def work(start: Start) -> None:
        try:
            referee = start()
            while not stopping.is_set():
                with guard:
                    file, text = next(files, (None, ""))
                if file is None:
                    return
                said.put((file, text, None))
                said.put((file, text, _looked_at(TaskSource(file.name, text), referee, stopping)))
        except BaseException as error:  # noqa: BLE001 - re-raised in the thread that waits
            said.put(error)
        finally:
            said.put(None)

    # Daemon threads: a check still running when the import stops ends with its referee.
    working = 0
    for start in starts[: len(todo)]:
        threading.Thread(target=work, args=(start,), daemon=True).start()
        working += 1
    try:
        while working:
            answer = said.get()
            if isinstance(answer, BaseException):
                raise answer
            if answer is None:
                working -= 1
            else:
                yield answer
    finally:
        stopping.set()


def _looked_at(task: TaskSource, referee: Lints, stopping: threading.Event) -> dict[str, Any]:
    """Check one file; return its state, reason, findings, shape space and text."""
    try:
        report = _lint(task, referee, stopping)
    except EvaluatorError as error:
        return {
            "state": "unknown", "reason": f"the referee could not look at it: {str(error)[:300]}", "findings": [],
            "inferred": None, "elapsed_s": 0.0, "source": "",
        }  # fmt: skip
    rules = {finding.rule for finding in report.findings if finding.severity == "error"}
    reason = report.reason
    if rules & set(_MAY_BE_NETWORK) and _DOWNLOADS.search(task.source):
        state, reason = "refused", _DOWNLOAD
    elif report.ok:
        state = "marked" if report.findings else "sound"
    else:
        state = "refused" if report.verdict == "task_rejected" else "unknown"
    plain = report.as_json()
    kept = {name: plain[name] for name in ("findings", "inferred", "elapsed_s", "source")}
    return {"state": state, "reason": reason, **kept}


def _lint(task: TaskSource, referee: Lints, stopping: threading.Event) -> LintReport:
    try:
        return referee.lint(task, deadline_s=_DEADLINE_S)
    except RefereeLost:
        if stopping.is_set():
            raise
        referee.restart()
        return referee.lint(task, deadline_s=_DEADLINE_S)


class _Journal:
    """Results by file name and text digest, one JSON line each, written as soon as they are known.

    Args:
        path: the path of the journal.
        device: the device of the referees; results of other devices are ignored.
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
        # Terminate a line that a killed process left incomplete.
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
        """Return the stored result for a file, if any."""
        return self._known.get((name, sha256))

    def put(self, name: str, sha256: str, found: dict[str, Any]) -> None:
        """Store a result, unless the referee could not check the file."""
        if found["state"] == "unknown":
            return
        line = {"name": name, "sha256": sha256, "place": self._place, "found": found}
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
