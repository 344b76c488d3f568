"""The referee as a reward: one asynchronous function that a trainer calls with the completions of a step.

It never guesses: a completion that was not judged (the evaluator died, no verdict came) gets None, and the log and the step's report
give the reason. A step without any answer is retried; if that fails, training stops before the step and can be resumed, because
a step without rewards would be lost.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agent.strategy.novelty import fingerprint
from evaluator.counting import counted
from evaluator.fingerprint import type_of
from evaluator.sources import TaskSource
from evaluator.verdict import Verdict
from rl.attempt import Attempt
from rl.config import FleetPart, RewardPart
from rl.errors import FleetLost, GroupError
from rl.exemplars import Success
from rl.hacks import HackDatabase, Opinion, Reviewer, caught, doubted
from rl.judges import Judge, LocalJudge, Unjudged
from rl.prompts import Answer, read_answer
from rl.reward import FAULTS, Score, measured_again, normalized, score, shaping
from rl.step_report import Report, Sample
from rl.verdicts import Kept, Key, VerdictJournal, elsewhere

_log = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.25
_MOST_REASONS = 5
_OWN_FAULT = "cannot be submitted"
#: Pause before an unanswered step is retried, times the attempt number; a restarting service needs some tens of seconds.
_PAUSE_S = 20.0


@dataclass(frozen=True)
class _Found:
    score: Score
    verdict: Verdict | None
    doubts: tuple[Opinion, ...] = ()


class Fleet:
    """Computes rewards from evaluators' verdicts.

    Args:
        judge: returns verdicts.
        tasks: tasks by the names in the trainer's column `task`.
        verdicts: the run's verdicts; what is in it is not judged again.
        group: number of completions per prompt.
        settings: width, patience, tries.
        reward: how verdicts become rewards.
        machine: machine type that rewards apply to (`evaluator.fingerprint.type_of`); None takes that of the first accepted verdict.
            Measurements from another type give None: times of two types are not compared.
        record: returns the highest known speedup of a task (by digest) on the machine, as of the step's snapshot.
        hacks: the database of hacks, as of the step's snapshot.
        reviewer: called when a reward jumps.
    """

    def __init__(
        self,
        judge: Judge,
        tasks: Mapping[str, TaskSource],
        verdicts: VerdictJournal,
        *,
        group: int,
        settings: FleetPart,
        reward: RewardPart,
        machine: str | None = None,
        record: Callable[[str], float | None] = lambda _: None,
        hacks: HackDatabase | None = None,
        reviewer: Reviewer | None = None,
    ) -> None:
        self._judge = judge
        self._tasks = dict(tasks)
        self._verdicts = verdicts
        self._group = group
        self._settings = settings
        self._reward = reward
        self.machine = machine
        self._record = record
        self._hacks = hacks
        self._reviewer = reviewer
        self._dead_steps = 0
        self.report = Report()

    async def rewards(
        self, prompts: Sequence[Any], completions: Sequence[Any], task: Sequence[str], **_: Any
    ) -> list[float | None]:
        """Rewards of a step's completions, as GRPO needs them: one each, whole groups, in order.

        This is a method rather than `__call__` because a trainer detects an asynchronous function by inspection and names
        the reward after it.

        Args:
            prompts: the prompt of each completion.
            completions: texts, or conversations that end with one.
            task: the task name of each completion.

        Raises:
            GroupError: the completions do not form whole groups of one prompt each.
            FleetLost: no attempt at the step got an answer, or several steps in a row could not be judged.
            JournalError: the database of hacks cannot be extended.
        """
        _check_groups(prompts, task, self._group)
        unknown = next((one for one in task if one not in self._tasks), None)
        if unknown is not None:
            raise GroupError(
                f"no task is called {unknown!r}; the reward knows {counted(len(self._tasks), 'task')}"
            )
        report = await self.judged([read_answer(text_of(one)) for one in completions], task)
        return [sample.reward for sample in report.samples]

    async def judged(self, answers: Sequence[Answer], task: Sequence[str]) -> Report:
        """Have the answers to some tasks judged, and return the step's report.

        Raises:
            FleetLost, JournalError: see `rewards`.
        """
        began_s = time.monotonic()
        keys = [
            None if answer.source is None else (self._tasks[name].sha256, fingerprint(answer.source))
            for name, answer in zip(task, answers, strict=True)
        ]
        until_s = began_s + self._settings.step_s
        judged, repeated = 0, None
        for attempt in range(1, self._settings.dead_steps + 1):
            step = Attempt(self._settings, attempt)
            report = await self._attempt(step, task, answers, keys, until_s)
            # The next attempt finds this attempt's verdicts; these lookups do not count as repeats.
            judged += report.judged
            repeated = report.repeated if repeated is None else repeated
            why = next((one for one in report.missing if one in step.lost or not report.heard), "")
            pause_s = attempt * _PAUSE_S
            if not why or attempt == self._settings.dead_steps or time.monotonic() + pause_s >= until_s:
                break
            _log.warning("no evaluator answers (%s); what is missing is asked again in %g s", why, pause_s)
            await asyncio.sleep(pause_s)
        if why and not report.cut:
            report.cut = not await self._answers(report)
        report.judged, report.repeated = judged, repeated or 0
        report.waited_s = time.monotonic() - began_s
        self._tell(report)
        return report

    def successes(self) -> list[Success]:
        """The last step's candidates for the exemplar database: accepted, timed and without any doubt."""
        found = {}
        for one in self.report.samples:
            clean = all(doubt.word == "nothing" for doubt in one.doubts)
            if one.answer.source is not None and one.score.value is not None and one.score.speedup and clean:
                task, source = self._tasks[one.task].sha256, one.answer.source
                success = Success(task, self.machine or "", source, one.score.speedup)
                found[task, fingerprint(source)] = success
        return list(found.values())

    async def _attempt(
        self,
        step: Attempt,
        task: Sequence[str],
        answers: Sequence[Answer],
        keys: Sequence[Key | None],
        until_s: float,
    ) -> Report:
        """Have the step's candidates without a known verdict judged."""
        self.report = report = Report()
        once: dict[Key, tuple[TaskSource, str]] = {}
        for key, name, answer in zip(keys, task, answers, strict=True):
            if key is None or answer.source is None:
                continue
            report.repeated += key in once
            once.setdefault(key, (self._tasks[name], answer.source))
        first = {
            key: asyncio.create_task(self._found(step, *once[key], key)) for key in step.in_turn(list(once))
        }
        await _finished(first.values(), until_s - time.monotonic())
        floor = shaping(self._reward).floor
        for key, name, answer in zip(keys, task, answers, strict=True):
            if key is None:
                found = _Found(Score(floor, None, "", f"no candidate: {answer.problem}"), None)
            else:
                found = self._result(step, first[key])
            if found.score.value is None:
                report.missing[found.score.why] += 1
                report.unheard += found.score.why in step.silences
            report.samples.append(Sample(name, answer, found.score, None, found.verdict, found.doubts))
        report.cut = bool(step.gone) or any(one.cancelled() for one in first.values())
        for begin in range(0, len(answers), self._group):
            members = report.samples[begin : begin + self._group]
            for sample, value in zip(
                members, normalized([one.score.value for one in members], self._reward), strict=True
            ):
                sample.reward = value
        return report

    async def _answers(self, report: Report) -> bool:
        """Whether evaluators still answer about a candidate judged before; if so, the unanswered candidates are at fault."""
        known = next((one for one in report.samples if one.verdict is not None), None)
        if known is None:
            return False
        try:
            async with asyncio.timeout(self._settings.patience_s):
                await self._judge.judge(self._tasks[known.task], known.answer.source or "")
        except (TimeoutError, Unjudged):
            return False
        return True

    def _result(self, step: Attempt, task: asyncio.Task[_Found]) -> _Found:
        if task.cancelled():
            why = step.silent(f"no verdict within the step's {self._settings.step_s:g} s")
            return _Found(Score(None, None, "", why), None)
        return task.result()

    async def _found(self, step: Attempt, task: TaskSource, source: str, key: Key) -> _Found:
        verdict, why = await self._verdict(step, task, source, key)
        if verdict is None:
            return _Found(self._unjudged(why), None)
        scored = self._score(task, verdict)
        if scored.again and not self._confirmed(key):
            again, why = await self._verdict(step, task, source, None)
            if again is None:
                scored = measured_again(scored, self._unjudged(why), self._reward)
            else:
                # Two measurements of the same shapes must agree; what counts is the whole, if there is more.
                compared = _at_the_shapes_of(again, verdict)
                second = self._score(task, compared)
                if len(compared.shapes) < len(again.shapes) or (second.speedup or 0.0) < (
                    scored.speedup or 0.0
                ):
                    verdict = again  # else the lower speed, or the rejection, counts
                scored = measured_again(scored, second, self._reward)
                if scored.speedup is not None and len(compared.shapes) < len(again.shapes):
                    scored = replace(self._score(task, again), again="")
            if scored.value is None:
                self._verdicts.drop(key)
            else:
                self._keep(key, Kept(verdict, confirmed=True))
            if why in step.silences:
                step.silent(scored.why)
        said = await self._opinions(step, task, source, key, scored)
        if said is None:
            # Paying it would reward candidates that no reviewer can assess; lowering it would blame the candidate for a reviewer's fault.
            self.report.unanswered += 1
            return _Found(
                Score(None, None, "", "a judge has not answered about a speed that jumped"), verdict
            )
        doubts = list(said)
        # The referee's own findings come first: they also catch accepted candidates with decoy kernels.
        if scored.speedup is not None and (own := caught(verdict)) is not None:
            doubts.append(Opinion("caught", f"the referee's finding: {own[0]}", f"the referee: {own[0]}"))
        if scored.speedup is not None and self._hacks is not None:
            doubts.append(self._hacks.opinion(source))
        return _Found(doubted(scored, doubts, self._reward), verdict, tuple(doubts))

    async def _opinions(
        self, step: Attempt, task: TaskSource, source: str, key: Key, scored: Score
    ) -> Sequence[Opinion] | None:
        """The reviewer's opinion on a candidate, new or stored; None if it did not answer.

        It is called when a speed jumped and was confirmed, in this step or in an earlier one that it did not answer.
        """
        kept = self._confirmed(key)
        if kept is not None and kept.opinions is not None:
            return kept.opinions
        if kept is None or scored.speedup is None or self._reviewer is None:
            return ()
        hits = self._hacks.alike(source) if self._hacks is not None else []
        try:
            # Waiting for a turn does not count toward the timeout.
            async with step.looks, asyncio.timeout(self._settings.patience_s):
                said = await asyncio.to_thread(self._reviewer, task, source, scored.speedup, hits)
        except Exception as error:  # noqa: BLE001 - a third-party program, over a network
            _log.warning("a judge of rewards failed: %s", str(error) or type(error).__name__)
            return None
        self._keep(key, replace(kept, opinions=(said,)))
        return (said,)

    def _score(self, task: TaskSource, verdict: Verdict) -> Score:
        if verdict.verdict == "accepted":
            measured_on = type_of(verdict.environment)
            if self.machine is None:
                self.machine = measured_on
            if measured_on != self.machine:
                return Score(
                    None, None, "", f"measured on {measured_on or 'an unknown machine'}, not {self.machine}"
                )
        elif other := elsewhere(verdict, self.machine):
            return Score(None, None, "", f"rejected on {other}, not {self.machine}")
        return score(verdict, self._reward, self._record(task.sha256))

    def _unjudged(self, why: str) -> Score:
        if why.startswith(_OWN_FAULT):
            return Score(shaping(self._reward).floor, None, "", why)
        return Score(None, None, "", why)

    async def _verdict(
        self, step: Attempt, task: TaskSource, source: str, key: Key | None
    ) -> tuple[Verdict | None, str]:
        """Return a verdict, or None and the reason; with a key, an earlier verdict if there is one."""
        if key is not None and (known := self._verdicts.get(key)) is not None:
            self.report.repeated += 1
            return known.verdict, ""
        why = ""
        for tried in range(self._settings.tries):
            if tried:
                await asyncio.sleep(_FIRST_PAUSE_S * 2 ** (tried - 1))
            async with step.turn:
                if step.gone:
                    return None, step.gone
                # A referee of this machine may be awaited long in a queue, and keeps to its own limit then.
                patience_s = None if isinstance(self._judge, LocalJudge) else self._settings.patience_s
                try:
                    async with asyncio.timeout(patience_s):
                        # Without a key it is measured again.
                        verdict = await self._judge.judge(task, source, whole=key is None)
                except TimeoutError:
                    return None, step.silent(f"no verdict within {self._settings.patience_s:g} s")
                except Unjudged as error:
                    why = str(error)
                    step.failed(error, task.sha256 + source)
                    if error.own_fault:
                        return None, f"{_OWN_FAULT}: {why}"
                    if error.again:
                        continue
                    return None, why
            step.answered()
            self.report.judged += 1
            why = f"not judged: {verdict.reason[:200]}"
            if verdict.verdict not in FAULTS:
                if key is not None:
                    self._keep(key, Kept(verdict, confirmed=False))
                return verdict, ""
            if verdict.verdict == "task_rejected":
                return None, why
        return None, why

    def _confirmed(self, key: Key) -> Kept | None:
        """A candidate's verdict whose suspicious speed was measured again."""
        kept = self._verdicts.get(key)
        return kept if kept is not None and kept.confirmed else None

    def _keep(self, key: Key, found: Kept) -> None:
        # A verdict from elsewhere is not stored: the candidate is judged again, perhaps on the right machine.
        if not elsewhere(found.verdict, self.machine):
            self._verdicts.put(key, found)

    def _tell(self, report: Report) -> None:
        missing = sum(report.missing.values())
        if missing:
            reasons = "; ".join(f"{count}x {why}" for why, count in report.missing.most_common(_MOST_REASONS))
            _log.warning("%d of %d completions have no reward: %s", missing, len(report.samples), reasons)
        if not report.asked:
            return
        why = next(iter(report.missing), "")
        if not report.heard:
            raise FleetLost(
                f"no evaluator answered about any candidate of a step ({why}). Nothing is lost: bring the evaluators back and resume from the "
                "last checkpoint"
            )
        self._dead_steps = 0 if report.known else self._dead_steps + 1
        if self._dead_steps >= self._settings.dead_steps:
            raise FleetLost(
                f"none of the candidates of {counted(self._dead_steps, 'step')} in a row could be judged ({why}): see what is wrong with the evaluators "
                "or with these tasks, and resume from the last checkpoint"
            )


async def _finished(tasks: Iterable[asyncio.Task[Any]], seconds: float) -> None:
    """Wait up to `seconds` for all tasks, then cancel the late ones, which frees their evaluators."""
    running = list(tasks)
    if running:
        _, late = await asyncio.wait(running, timeout=max(seconds, 0.0))
        for one in late:
            one.cancel()
        await asyncio.gather(*late, return_exceptions=True)


def _at_the_shapes_of(verdict: Verdict, first: Verdict) -> Verdict:
    """A verdict with the shapes alone that another one has, too."""
    known = [(shape.split, shape.dims) for shape in first.shapes]
    return replace(verdict, shapes=tuple(one for one in verdict.shapes if (one.split, one.dims) in known))


def _check_groups(prompts: Sequence[Any], tasks: Sequence[str], group: int) -> None:
    """Check that completions are ordered in whole groups of one prompt and one task each: GRPO compares them."""
    if len(prompts) != len(tasks) or len(prompts) % group:
        raise GroupError(
            f"{counted(len(prompts), 'completion')} of {counted(len(tasks), 'task')} are not whole groups of {group}"
        )
    for begin in range(0, len(prompts), group):
        block = slice(begin, begin + group)
        if any(one != prompts[begin] for one in prompts[block]) or len(set(tasks[block])) > 1:
            raise GroupError(
                f"completions {begin} to {begin + group - 1} are one group and have different prompts"
            )


def text_of(completion: Any) -> str:
    """The text of a completion: the string itself, or the last turn of a conversation."""
    if isinstance(completion, str):
        return completion
    last = completion[-1] if isinstance(completion, Sequence) and completion else {}
    said = last.get("content") if isinstance(last, Mapping) else None
    return said if isinstance(said, str) else ""
