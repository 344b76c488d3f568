"""Runs a batch: several referees side by side, each in its own thread, every verdict written to disk at once.

Referees of one device coordinate timing through :mod:`evaluator.timing.exclusive`: while one times, the others
compile or wait to check, so the stages of different candidates overlap.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from evaluator.batch.manifest import BadLine, Entry
from evaluator.batch.places import Place
from evaluator.batch.results import Record, Results
from evaluator.batch.schedule import Schedule
from evaluator.client import Referee
from evaluator.devices import BACKENDS, Device, open_device
from evaluator.errors import EvaluatorError, RefereeLost
from evaluator.folders import verdicts_folder
from evaluator.sources import sha256_of, task_folder
from evaluator.verdict import NO_ROOM, Verdict, without_measurement
from evaluator.verdict_store import VerdictStore

#: Opening a task and compiling its baselines does not count as the candidate's time. A referee silent for longer
#: has a fault.
_GRACE_S = 900.0
_ATTEMPTS = 2
#: Verdicts that say nothing about the candidate.
UNJUDGED = ("not_judged", "task_rejected")


@dataclass(frozen=True)
class Options:
    """How a batch is judged.

    Attributes:
        work_dir: the referees' folder, which also holds the verdicts that may be reused.
        minimum_tier: the weakest sandbox to accept.
        fresh: judge again even if a verdict is stored.
        retry: judge again what an earlier run of this batch could not judge.
    """

    work_dir: Path
    minimum_tier: str = "landlock"
    fresh: bool = False
    retry: bool = False


class Batch:
    """One run over a manifest.

    Args:
        lines: the manifest.
        results: where verdicts go.
        seats: the referees to start, called only if something is left to judge.
        options: see :class:`Options`.
    """

    def __init__(
        self,
        lines: Sequence[Entry | BadLine],
        results: Results,
        seats: Callable[[set[str]], list[Place]],
        options: Options,
    ) -> None:
        self._lines = lines
        self._results = results
        self._seats = seats
        self._options = options
        self._guard = threading.Lock()
        self._stopping = threading.Event()
        self._referees: dict[str, Referee] = {}
        self._followers: dict[str, list[Entry]] = {}
        self._postponed: set[str] = set()
        self.total = len(lines)
        #: Number of lines with a verdict by word, from this run or an earlier one.
        self.counts: Counter[str] = Counter()
        self.skipped = 0
        self.reused = 0
        #: Number of verdicts that a referee of this run reached, and when the first referee was started.
        self.judged = 0
        self.started_s: float | None = None
        #: Why referees could not start, by place.
        self.failures: dict[str, str] = {}
        self._fault: Exception | None = None

    @property
    def done(self) -> int:
        """Number of lines that have a verdict."""
        return sum(self.counts.values())

    @property
    def rate_per_minute(self) -> float:
        """Verdicts per minute since the first referee was started, without reused ones."""
        if self.started_s is None:
            return 0.0
        return self.judged / max(time.monotonic() - self.started_s, 1e-3) * 60

    def run(self, show: Callable[[], None]) -> None:
        """Judges everything that has no verdict yet. ``show`` is called several times a second.

        Raises:
            KeyboardInterrupt: the user stopped it; finished verdicts are on disk.
            ResultsUnusable: the disk is full or broken.
            EvaluatorError: the requested devices do not exist.
        """
        todo = self._plan()
        seats = self._seats({entry.device for entry in todo}) if todo else []
        todo_after_store = [entry for entry in todo if not self._answer_from_store(entry, seats)]
        schedule = Schedule(todo_after_store)
        # Daemon threads: their referees end with this process in any case.
        threads = [
            threading.Thread(target=self._work, args=(place, schedule), daemon=True)
            for place in _needed(seats, todo_after_store)
        ]
        if threads:
            self.started_s = time.monotonic()
        try:
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads):
                show()
                time.sleep(0.1)
        except KeyboardInterrupt:
            self._stop()
            for thread in threads:
                thread.join(timeout=20)
            raise
        show()
        if self._fault is not None:
            raise self._fault

    # -- before --------------------------------------------------------------------------------------------------

    def _plan(self) -> list[Entry]:
        """What is left to judge. Bad lines get their record, and one of several equal questions stands for all."""
        todo: list[Entry] = []
        first: dict[str, Entry] = {}
        for line in self._lines:
            record = self._results.find(line.id, line.digest)
            if record is not None and not (
                self._options.retry and isinstance(line, Entry) and record.verdict.verdict in UNJUDGED
            ):
                self.skipped += 1
                self.counts[record.verdict.verdict] += 1
            elif isinstance(line, BadLine):
                self._record(line, _unreadable(line))
            elif line.digest in first and "held_out" not in line.request.splits:
                self._followers.setdefault(first[line.digest].id, []).append(line)
            else:
                first[line.digest] = line
                todo.append(line)
        return todo

    def _answer_from_store(self, entry: Entry, seats: Sequence[Place]) -> bool:
        if self._options.fresh:
            return False
        for device in self._devices(entry.device, seats):
            store = VerdictStore(verdicts_folder(self._options.work_dir))
            verdict = store.answer(entry.request, device, self._options.minimum_tier)
            if verdict is not None:
                self.reused += 1
                self._finish(entry, verdict)
                return True
        return False

    def _devices(self, device: str, seats: Sequence[Place]) -> list[Device]:
        """The devices on which an entry may be judged, each once."""
        visible = dict.fromkeys(place.visible_gpu for place in seats if place.device == device)
        found = []
        for gpu in visible:
            try:
                found.append(open_device(device, gpu))
            except EvaluatorError:
                continue
        return found

    # -- the referees' threads -----------------------------------------------------------------------------------

    def _work(self, place: Place, schedule: Schedule) -> None:
        task = ""
        try:
            while not self._stopping.is_set():
                entry = schedule.take(place.name, place.device, lambda entry: _at_home(entry, place))
                if entry is None:
                    return
                try:
                    if task != entry.request.task.sha256:
                        task = entry.request.task.sha256
                        self._build([entry, *schedule.ahead(place.name)], place)
                    verdict = self._judge(entry, place)
                except EvaluatorError as error:
                    # No referee can be started here, which is not this entry's fault.
                    schedule.give_back(place.name, entry)
                    if not self._stopping.is_set():
                        self.failures[place.name] = str(error)
                    return
                if self._had_no_room(entry, verdict):
                    schedule.put_last(entry)
                    continue
                with self._guard:
                    self.judged += 1
                self._finish(entry, verdict)
        except Exception as error:  # noqa: BLE001 - a thread's fault must end the batch in words, not in silence
            self._fault = error
            self._stop()
        finally:
            referee = self._referees.pop(place.name, None)
            if referee is not None:
                referee.close()

    def _build(self, entries: Sequence[Entry], place: Place) -> None:
        """Builds the candidates of a task before the task takes GPU memory, for which others would wait meanwhile.

        Raises:
            EvaluatorError: no referee can be started, or the batch is stopping.
        """
        referee = self._referee(place, lost=False)
        for entry in entries if BACKENDS[place.device].is_accelerator else ():
            try:
                with _watched(referee, entry):
                    referee.build(
                        entry.request.task, entry.request.candidate, deadline_s=entry.request.deadline_s
                    )
            except EvaluatorError:
                return  # the evaluation hits the same failure, restarts a lost referee, and reports why

    def _had_no_room(self, entry: Entry, verdict: Verdict) -> bool:
        """Whether an entry found a GPU's memory full for the first time.

        It is then judged again when others are done.
        """
        full = verdict.verdict == "not_judged" and any(
            finding.rule == NO_ROOM for finding in verdict.findings
        )
        with self._guard:
            first = full and entry.id not in self._postponed
            if first:
                self._postponed.add(entry.id)
        return first

    def _judge(self, entry: Entry, place: Place) -> Verdict:
        """The verdict on an entry. A lost referee is restarted, and the entry tried once more.

        Raises:
            EvaluatorError: no referee can be started, or the batch is stopping.
        """
        for attempt in range(_ATTEMPTS):
            referee = self._referee(place, lost=attempt > 0)
            try:
                with _watched(referee, entry):
                    return referee.judge(entry.request)
            except RefereeLost as lost:
                reason = f"the referee was lost {_ATTEMPTS} times ({lost}); --retry judges it again"
                if self._stopping.is_set():
                    raise
            except EvaluatorError as fault:
                return _not_judged(entry, f"the referee had a fault: {fault}")
        return _not_judged(entry, reason)

    def _referee(self, place: Place, *, lost: bool) -> Referee:
        referee = self._referees.get(place.name)
        if referee is None:
            referee = Referee(
                place.device,
                work_dir=place.work_dir,
                minimum_tier=self._options.minimum_tier,
                visible_gpu=place.visible_gpu,
                verdicts_dir=verdicts_folder(self._options.work_dir),
                referees=place.referees,
            )
            with self._guard:
                self._referees[place.name] = referee
        elif lost or not referee.alive:
            referee.restart()
        if self._stopping.is_set():
            raise EvaluatorError("the batch was stopped")
        return referee

    def _stop(self) -> None:
        self._stopping.set()
        with self._guard:
            referees = list(self._referees.values())
        for referee in referees:
            referee.kill()

    # -- verdicts ------------------------------------------------------------------------------------------------

    def _finish(self, entry: Entry, verdict: Verdict) -> None:
        self._record(entry, verdict)
        for follower in self._followers.get(entry.id, ()):
            candidate = {**verdict.candidate, "label": follower.request.candidate.label}
            task = {**verdict.task, "name": follower.request.task.name}
            self._record(follower, replace(verdict, task=task, candidate=candidate), entry.id)

    def _record(self, line: Entry | BadLine, verdict: Verdict, same_as: str | None = None) -> None:
        self._results.add(Record(line.id, line.line, line.digest, verdict, same_as))
        with self._guard:
            self.counts[verdict.verdict] += 1


@contextmanager
def _watched(referee: Referee, entry: Entry) -> Iterator[None]:
    """Kills a referee that is silent for longer than an entry may take."""
    watchdog = threading.Timer(entry.request.deadline_s + _GRACE_S, referee.kill)
    watchdog.daemon = True
    watchdog.start()
    try:
        yield
    finally:
        watchdog.cancel()


def _at_home(entry: Entry, place: Place) -> bool:
    """Whether this place's referee has had an entry's task before."""
    return (place.work_dir / "store" / task_folder(entry.request.task.sha256)).exists()


def _needed(seats: Sequence[Place], entries: Sequence[Entry]) -> list[Place]:
    """No more referees than entries, per device."""
    left = Counter(entry.device for entry in entries)
    needed = []
    for place in seats:
        if left[place.device] > 0:
            left[place.device] -= 1
            needed.append(place)
    return needed


def _not_judged(entry: Entry, reason: str) -> Verdict:
    candidate = entry.request.candidate
    return without_measurement(
        "not_judged",
        reason,
        task={"name": entry.request.task.name, "sha256": entry.request.task.sha256},
        candidate={"sha256": candidate.sha256, "origin": candidate.origin, "label": candidate.label},
        effort=entry.request.effort,
        splits=entry.request.splits,
        environment={"device": entry.device},
    )


def _unreadable(line: BadLine) -> Verdict:
    nothing = sha256_of("")
    return without_measurement(
        "not_judged",
        f"line {line.line} of the manifest: {line.reason}",
        task={"name": "", "sha256": nothing},
        candidate={"sha256": nothing, "origin": "external", "label": line.id or ""},
        effort="screen",
        splits=(),
        environment={},
    )
