"""The main loop of a job: describe, ask models, propose, judge, choose, assemble, judge on held-out shapes, bundle.

Each step stores its result. A job killed at any point is simply run again: stored steps are skipped, and only the
judging in flight is repeated.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Set
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from agent.background import Background
from agent.budget import reason_to_stop
from agent.candidates import Candidate
from agent.clock import Clock, OutOfTime, TimedReferee
from agent.delivery import deliver
from agent.diagnosing import DESCRIBE_STEP, PROFILE_STEP, Profiles, diagnose, roofline_share
from agent.errors import AnswersAwaited
from agent.judging import (
    ENERGY_STEPS,
    JobStopped,
    further_verdicts,
    judge_candidate,
    judge_energy,
    judge_further,
    put_off,
    raise_if_stopped,
    rejected_meanwhile,
    relative_joules,
    restart_referee,
    settle_put_off,
    task_of,
)
from agent.languages import kind_of_start
from agent.portfolio import Entry, rank
from agent.portfolio.entries import tied, with_further
from agent.portfolio.planner import next_timings
from agent.proposers.registry import proposers_for
from agent.proposing import ProposalContext
from agent.providers.client import ledger_of
from agent.records import ASKED_STEPS, Records
from agent.scheduling import Schedule
from agent.spec import Budget, JobOutcome, JobSpec, ModelChoice
from agent.store import JobStore
from agent.strategy.graph_variants import graph_variant
from evaluator.counting import counted
from evaluator.description import Description
from evaluator.devices import is_accelerator
from evaluator.errors import RefereeLost
from evaluator.shapes.inference.declaring import told
from evaluator.shapes.space import as_fields
from evaluator.verdict import Verdict

if TYPE_CHECKING:
    from agent.memory.entries import Memory
    from evaluator.client import Referee

__all__ = ["Budget", "JobOutcome", "JobSpec", "ModelChoice", "judge_candidate", "run_job"]

_log = logging.getLogger(__name__)
#: Candidates whose energy is measured; each takes a few minutes.
_MOST_ENERGIES = 3
#: Cost of judging the delivered file, in units of one member's judging: it is screened again and confirmed in pairs of new
#: processes (136 s, after 18 s and 36 s, on two cores).
_FINAL_JUDGINGS = 3


def run_job(
    spec: JobSpec,
    store: JobStore,
    referee: Referee,
    out_dir: Path,
    memory: Memory | None = None,
    profile: Profiles = lambda _: None,
    began_s: float | None = None,
) -> JobOutcome:
    """Run a job to its end, or resume it.

    Args:
        spec: what to do.
        store: holds the results; a store with earlier results is resumed.
        referee: judges candidates; not closed by this function.
        out_dir: folder for the bundle.
        memory: lessons of earlier jobs that this job may see; None without a memory.
        profile: reports the reference's bottleneck to the models; see `agent.diagnosing`.
        began_s: monotonic time from which the budget's seconds count; now by default.

    Returns:
        The outcome. Errors in candidates, proposers and tasks are outcomes; only internal errors raise.
    """
    clock = Clock(spec.budget.seconds, store.seconds_before(), began_s)
    store.event("job.started", {"name": spec.name, "device": spec.device})
    outcome = _Job(spec, store, referee, out_dir, memory, profile, clock).run()
    names = {
        "succeeded": "job.finished",
        "failed": "job.failed",
        "cancelled": "job.cancelled",
        "waiting": "job.waiting",
    }
    data = {"verdict": outcome.verdict_word, "reason": outcome.reason, "winner_sha256": outcome.winner_sha256}
    store.event(names[outcome.state], data)
    return outcome


class _Job:
    def __init__(
        self,
        spec: JobSpec,
        store: JobStore,
        referee: Referee,
        out_dir: Path,
        memory: Memory | None,
        profile: Profiles,
        clock: Clock,
    ) -> None:
        self.spec = spec
        self.store = store
        self.clock = clock
        timed = TimedReferee(referee, clock)
        self.referee = cast("Referee", timed)
        self.out_dir = out_dir
        self.memory = memory
        self.profile: Profiles = lambda text: timed.run("profiling the reference", lambda: profile(text))
        self._outlines: dict[tuple[str, str], Verdict] = {}
        self.leader = ""
        self.cut_off = ""
        self.accepted = False

    def run(self) -> JobOutcome:
        """Run all steps in order."""
        try:
            description = self._describe()
            if not description.ok:
                return JobOutcome(
                    "failed", description.verdict, description.reason or "the task was rejected"
                )
            self.spec = replace(self.spec, task=task_of(self.spec, self.store), space=None)
            if self.store.step("optimized/1") is None:  # afterwards the choice is frozen
                self._search(description)
            self.clock.kept_s = 0.0
            self._tell("choosing", "choosing what is delivered and judging it as one file")
            delivered = deliver(
                self.spec, self.store, self.referee, description, self._entries(), self.out_dir
            )
        except AnswersAwaited as awaited:
            return JobOutcome("waiting", None, str(awaited))
        except OutOfTime as late:
            self._tell_late(late)
            return JobOutcome("failed", None, f"nothing is delivered: {late}{self._not_asked()}")
        except JobStopped as stopped:
            return JobOutcome("cancelled", None, f"stopped on request ({stopped.reason})")
        except RefereeLost as lost:
            reason = self.store.stop_requested()
            if reason:
                return JobOutcome("cancelled", None, f"stopped on request ({reason})")
            return JobOutcome("failed", "not_judged", f"the referee was lost: {lost}")
        return replace(delivered, reason=delivered.reason + self.cut_off + self._not_asked())

    def _tell(self, stage: str, text: str) -> None:
        self.store.event("job.progress", {"stage": stage, "text": text})

    def _describe(self) -> Description:
        known = self.store.step(DESCRIBE_STEP)
        if isinstance(known, dict):
            return Description.from_json(known)
        self._tell("describing", "describing the task: its inputs, its sizes, whether it can be judged")
        try:
            description = self._describe_task()
        except RefereeLost:
            raise_if_stopped(self.store)
            restart_referee(self.referee)
            description = self._describe_task()
        self.store.finish_step(DESCRIBE_STEP, description.as_json())
        if inferred := description.inferred:
            words = "\n".join(told(inferred))
            space = as_fields(inferred.space)
            self.store.event("task.inferred", {"text": words, "ok": inferred.ok, "space": space})
        return description

    def _describe_task(self) -> Description:
        return self.referee.describe(self.spec.task, traffic=self.spec.traffic, space=self.spec.space)

    def _search(self, description: Description) -> None:
        """Run everything before the choice; stops when the job's time is up."""
        try:
            self._collect(description)
            self._time_further(description)
            self._measure_energy()
        except OutOfTime as late:
            self._tell_late(late)
            self.cut_off = f"; {late}"
            settle_put_off(self.store)

    def _tell_late(self, late: OutOfTime) -> None:
        data = {"reason": f"{self.spec.budget.seconds:g} s", "text": str(late)}
        self.store.event("budget.spent", data)
        self.store.finish_step("budget", {"reason": data["reason"]})

    def _collect(self, description: Description) -> None:
        """Propose and judge until the proposers or the budget are exhausted."""
        turns = Schedule(
            self.store,
            proposers_for(self.spec),
            lambda others_wait: self._context(description, others_wait),
            self._judge,
            self.clock.left_s,
        )
        try:
            if turns.models and self._may_go_on():
                self._tell("profiling", "profiling the reference, for the models")
                diagnose(self.spec, self.store, self.referee, self.profile)
            turns.ask()
            if self.spec.start_from is not None and kind_of_start(self.spec.start_from) == "candidate":
                self._judge(Candidate(self.spec.start_from, "external", "starting point"))
            self._judge_waiting(put_off(self.store))
            turns.run()
            self._judge_waiting(set())
            settle_put_off(self.store)
        finally:
            turns.close()

    def _context(self, description: Description, others_wait: Callable[[], bool]) -> ProposalContext:
        background = Background(self.store, self.spec.task.source, description, self.spec.device, self.memory)
        return ProposalContext(
            self.spec.task,
            description,
            self.spec.device,
            self.referee,
            self.store,
            may_go_on=self._may_go_on,
            background=background,
            ledger=ledger_of(self.store, self.spec.budget),
            others_wait=others_wait,
            shapes=self.spec.shapes,
        )

    def _time_further(self, description: Description) -> None:
        """Time the contenders at more validation shapes while that can change the choice and the budget allows it."""
        own = "validation" in (self.spec.shapes or {})  # explicit validation shapes are final; add none
        further = () if own else description.further
        while self._may_go_on():
            asks = next_timings(self._entries(), further, self.spec.strategy.timings)
            if not asks:
                return
            for ask in asks:
                raise_if_stopped(self.store)
                judge_further(self.spec, self.store, self.referee, ask.entry.candidate, ask.shapes)

    def _measure_energy(self) -> None:
        """Measure the energy of tied candidates if the job requests it; it can change the choice only among ties."""
        for entry in tied(self._entries(), _MOST_ENERGIES) if self.spec.energy else []:
            if not self._may_go_on():
                return
            judge_energy(self.spec, self.store, self.referee, entry.candidate)

    def _judge_waiting(self, but: Set[str]) -> None:
        """Judge stored candidates without a final verdict: external ones, leftovers of a killed attempt, deferred ones.

        One that was killed between its two phases is validated even if the budget allows no further candidate.
        """
        again, room = put_off(self.store), True
        for candidate in self.store.candidates():
            screen = self._outline(candidate.sha256, "screen")
            if screen is None:
                waits = room
            else:
                validated = self._outline(candidate.sha256, "validation") is not None
                waits = screen.verdict == "accepted" and not validated
            if (waits or candidate.sha256 in again) and candidate.sha256 not in but:
                room = self._judge(candidate) and room

    def _judge(self, candidate: Candidate) -> bool:
        """Judge one candidate and its graph variant; return False if the budget does not allow it."""
        raise_if_stopped(self.store)
        if self.store.verdict(candidate.sha256, "screen") is None and not self._affordable():
            return False
        self.clock.kept_s = self._final_judging_s()[0]
        if self.store.add_candidate(candidate):
            data = {"sha256": candidate.sha256, "origin": candidate.origin, "label": candidate.label}
            self.store.event("candidate.proposed", data)
        judge_candidate(
            self.spec,
            self.store,
            self.referee,
            candidate,
            screened=lambda verdict: self._tell_first(candidate, verdict),
            may_put_off=True,
        )
        self._tell_leader()
        variant = graph_variant(self.store, candidate, self.spec.device)
        if variant is not None:
            self._judge(variant)
        return True

    def _tell_first(self, candidate: Candidate, verdict: Verdict) -> None:
        """Report the job's first accepted candidate immediately; validation may still reject it."""
        if self.accepted or self._entries(self._outline):
            return
        self.accepted = True
        summary = verdict.summary
        self._tell_best(candidate, summary.geomean_speedup, summary.geomean_ci95, provisional=True)

    def _tell_leader(self) -> None:
        ranked = rank(self._entries(self._outline))
        if ranked and ranked[0].candidate.sha256 != self.leader:
            self.leader = ranked[0].candidate.sha256
            interval = ranked[0].verdict.summary.geomean_ci95
            self._tell_best(ranked[0].candidate, ranked[0].geomean, interval, provisional=False)

    def _tell_best(
        self, candidate: Candidate, geomean: float | None, ci95: object, *, provisional: bool
    ) -> None:
        data = {
            "sha256": candidate.sha256,
            "label": candidate.label,
            "origin": candidate.origin,
            "geomean_speedup": geomean,
            "ci95": ci95,
            "seconds": round(self.clock.used_s(), 1),
            "provisional": provisional,
        }
        self.store.event("portfolio.changed", data)

    def _outline(self, sha256: str, phase: str) -> Verdict | None:
        """A verdict without its shapes, cached because a stored verdict never changes."""
        known = self._outlines.get((sha256, phase))
        if known is None:
            verdict = self.store.verdict(sha256, phase)
            if verdict is None:
                return None
            known = replace(verdict, shapes=())
            self._outlines[sha256, phase] = known
        return known

    def _entries(self, read: Callable[[str, str], Verdict | None] | None = None) -> list[Entry]:
        """Accepted and validated candidates. Delivered files are excluded, since they are never validated.

        Entries built from outlines can be ranked but not delivered.
        """
        entries = []
        joules = relative_joules(self.store) if self.spec.energy else {}
        rejected = rejected_meanwhile(self.store) if self.spec.energy else set()
        for order, candidate in enumerate(self.store.candidates()):
            if candidate.sha256 in rejected:
                continue
            verdict = (read or self.store.verdict)(candidate.sha256, "validation")
            if verdict is None or verdict.verdict != "accepted":
                continue
            if verdict.summary.geomean_speedup:
                entry = Entry(candidate, order, verdict, relative_joules=joules.get(candidate.sha256))
                if read is None:
                    entries += with_further(entry, further_verdicts(self.store, candidate.sha256))
                else:
                    entries.append(entry)
        return entries

    def _may_go_on(self) -> bool:
        raise_if_stopped(self.store)
        return self._affordable()

    def _affordable(self) -> bool:
        """Whether the budget allows one more candidate; says so once when it does not."""
        spent = self._exhausted()
        if spent and self.store.step("budget") is None:
            self.store.event("budget.spent", {"reason": spent, "text": f"the budget is spent: {spent}"})
            self.store.finish_step("budget", {"reason": spent})
        return not spent

    def _exhausted(self) -> str:
        budget = self.spec.budget
        if self.store.stop_requested() == "budget":
            return "stopped by the budget"
        judged = [one for one in self.store.candidates() if self._outline(one.sha256, "screen") is not None]
        if budget.candidates is not None and len(judged) >= budget.candidates:
            return counted(budget.candidates, "candidate")
        if budget.seconds is not None and (spent := self._seconds_spent()):
            return spent
        if budget.gpu_seconds is not None and is_accelerator(self.spec.device):
            if self._judging_seconds() >= budget.gpu_seconds:
                return f"{budget.gpu_seconds:g} GPU seconds"
        speedups = [_speedup(self._outline(one.sha256, "screen")) for one in judged]
        ranked = rank(self._entries(self._outline))
        best = self.store.verdict(ranked[0].candidate.sha256, "screen") if ranked else None
        return reason_to_stop(
            speedups,
            roofline_share(self.store.step(PROFILE_STEP), self.store.step(DESCRIBE_STEP), best),
            budget,
        )

    def _seconds_spent(self) -> str:
        """Why there is no time for another candidate, or ""; time for judging the delivered file is reserved."""
        seconds, left_s = self.spec.budget.seconds, self.clock.left_s() or 0.0
        kept_s, screen_s = self._final_judging_s()
        if left_s > kept_s + screen_s:
            return ""
        kept = f" (the last {left_s:.0f} s are for judging what is delivered)" if left_s and kept_s else ""
        return f"{seconds:g} s{kept}"

    def _final_judging_s(self) -> tuple[float, float]:
        """Estimated seconds to judge the delivered file and to screen one more candidate; 0 with nothing to deliver."""
        took: list[tuple[float, float]] = []
        for entry in self._entries(self._outline):
            screen = self._outline(entry.candidate.sha256, "screen")
            screen_s = screen.elapsed_s if screen is not None else 0.0
            took.append((screen_s + entry.verdict.elapsed_s, screen_s))
        longest_s, screen_s = max(took, default=(0.0, 0.0))
        return _FINAL_JUDGINGS * longest_s, screen_s

    def _judging_seconds(self) -> float:
        """Seconds spent judging, in this and earlier attempts, according to the store."""
        total = 0.0
        for candidate in self.store.candidates():
            for phase in ("screen", "validation"):
                verdict = self._outline(candidate.sha256, phase)
                total += verdict.elapsed_s if verdict is not None else 0.0
            found = self.store.step(f"{ENERGY_STEPS}{candidate.sha256}")
            total += float((found.get("elapsed_s") if isinstance(found, dict) else None) or 0.0)
        return total + sum(one.verdict.elapsed_s for one in further_verdicts(self.store))

    def _not_asked(self) -> str:
        """Names the configured models that received no request, and why, for the outcome; empty if all received one."""
        told = ""
        for origin in sorted({choice.origin for choice in self.spec.models} & set(self.spec.origins)):
            if self.store.step(f"{ASKED_STEPS}{origin}") or Records(self.store, f"{origin}/").requests():
                continue
            ended, spent = self.store.step(f"proposed/{origin}"), self.store.step("budget")
            why = "its budget has no room for a request"
            if isinstance(ended, dict) and ended.get("error"):
                why = str(ended["error"])
            elif isinstance(spent, dict):
                why = f"the budget was spent before ({spent['reason']})"
            told += f"; the {'model' if origin == 'llm' else origin} was not asked: {why}"
        return told


def _speedup(verdict: Verdict | None) -> float | None:
    if verdict is None or verdict.verdict != "accepted":
        return None
    return verdict.summary.geomean_speedup
