"""The referee as a reward: one asynchronous function that a trainer calls with the completions of a step.

It never guesses: a completion that was not judged (the evaluator died, no verdict came) gets None, and the log and the step's report
give the reason. A step without any answer is retried; if that fails, training stops before the step and can be resumed, because
a step without rewards would be lost.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agent.strategy.novelty import fingerprint
from evaluator.fingerprint import type_of
from evaluator.sources import TaskSource
from evaluator.verdict import Verdict
from rl import hacks as hacks_module
from rl.attempt import Attempt
from rl.config import FleetPart, RewardPart
from rl.errors import FleetLost, GroupError
from rl.exemplars import Success, measured
from rl.groups import check_group_order
from rl.hacks import HackDatabase, Opinion
from rl.judges import Judge, Unjudged
from rl.prompts import Answer, read_answer
from rl.reward import FAULTS, Score, measured_again, normalized, score, shaping
from rl.step_report import Report, Sample
from rl.verdicts import Kept, VerdictJournal, elsewhere

_log = logging.getLogger(__name__)

_KEPT_VERDICTS = 4096
_FIRST_PAUSE_S = 0.25
_MOST_REASONS = 5
#: Pause before an unanswered step is retried, times the attempt number; a restarting service needs some tens of seconds.
_PAUSE_S = 20.0


@dataclass(frozen=True)
class _Found:
    score: Score
    verdict: Verdict | None
    doubts: tuple[Opinion, ...] = ()


@dataclass(frozen=True)
class Knowledge:
    """What a reward depends on besides the verdict, all as of the step's snapshot.

    Attributes:
        record: returns the highest known speedup of a task (by digest) on the machine.
        portfolio: returns the verdicts on a task's accepted candidates, except the one with this fingerprint; used only by the
            shaping `marginal`.
        hacks: the database of hacks, or None.
        judges: called when a reward jumps, see `rl.hacks.Judge`.
        learns: whether this process writes to `hacks`; only the first rank does.
    """

    record: Callable[[str], float | None] = lambda _: None
    portfolio: Callable[[str, str], Sequence[Verdict]] = lambda task, form: ()
    hacks: HackDatabase | None = None
    judges: Sequence[hacks_module.Judge] = ()
    learns: bool = True


class Fleet:
    """Computes rewards from evaluators' verdicts.

    Args:
        judge: returns verdicts.
        tasks: tasks by the names in the trainer's column `task`.
        machine: machine type that rewards apply to (`evaluator.fingerprint.type_of`); None takes that of the first accepted verdict.
            Measurements from another type give None: times of two types are not compared.
        group: number of completions per prompt.
        fleet: width, patience, tries.
        reward: how verdicts become rewards.
        knowledge: what else a reward depends on.
        verdicts: journal of verdicts for resumed runs; without it, verdicts are kept only in memory.
    """

    def __init__(
        self,
        judge: Judge,
        tasks: Mapping[str, TaskSource],
        *,
        group: int,
        machine: str | None = None,
        fleet: FleetPart | None = None,
        reward: RewardPart | None = None,
        knowledge: Knowledge | None = None,
        verdicts: VerdictJournal | None = None,
    ) -> None:
        self._judge = judge
        self._tasks = dict(tasks)
        self.machine = machine
        self._group = group
        self._settings = fleet or FleetPart()
        self._reward = reward or RewardPart()
        self._knowledge = knowledge or Knowledge()
        self._kept: OrderedDict[tuple[str, str], Kept] = OrderedDict()
        self._verdicts = verdicts
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
        check_group_order(prompts, task, self._group)
        unknown = next((one for one in task if one not in self._tasks), None)
        if unknown is not None:
            raise GroupError(f"no task is called {unknown!r}; the reward knows {len(self._tasks)} tasks")
        began_s = time.monotonic()
        answers = [read_answer(text_of(one)) for one in completions]
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
            _log.warning("nobody answers (%s); what is missing is asked again in %g s", why, pause_s)
            await asyncio.sleep(pause_s)
        if why and not report.cut:
            report.cut = not await self._answers(report)
        report.judged, report.repeated = judged, repeated or 0
        report.waited_s = time.monotonic() - began_s
        self._tell(report)
        return [sample.reward for sample in report.samples]

    def successes(self) -> list[Success]:
        """The last step's candidates for the exemplar database: accepted, timed and without any doubt."""
        found = {}
        for one in self.report.samples:
            clean = all(doubt.word == "nothing" for doubt in one.doubts)
            if one.answer.source is not None and one.score.value is not None and one.score.speedup and clean:
                task = self._tasks[one.task].sha256
                shapes = measured(one.verdict) if one.verdict else ()
                success = Success(
                    task, self.machine or "", one.answer.source, one.score.speedup, shapes=shapes
                )
                found[one.task, fingerprint(one.answer.source)] = success
        return list(found.values())

    async def _attempt(
        self,
        step: Attempt,
        task: Sequence[str],
        answers: Sequence[Answer],
        keys: Sequence[tuple[str, str] | None],
        until_s: float,
    ) -> Report:
        """Have the step's candidates without a known verdict judged."""
        self.report = report = Report()
        once: dict[tuple[str, str], tuple[TaskSource, str]] = {}
        for key, name, answer in zip(keys, task, answers, strict=True):
            if key is None or answer.source is None:
                continue
            report.repeated += key in once
            once.setdefault(key, (self._tasks[name], answer.source))
        first = {
            key: asyncio.create_task(self._found(step, *once[key], key)) for key in step.in_turn(list(once))
        }
        await self._all(first.values(), until_s - time.monotonic())
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

    async def _all(self, tasks: Any, seconds: float) -> None:
        """Wait up to `seconds` for all tasks, then cancel the late ones, which frees their evaluators."""
        if not tasks:
            return
        _, late = await asyncio.wait(list(tasks), timeout=max(seconds, 0.0))
        for one in late:
            one.cancel()
        if late:
            await asyncio.wait(late)

    def _result(self, step: Attempt, task: asyncio.Task[_Found]) -> _Found:
        if task.cancelled():
            why = step.silent(f"no verdict within the step's {self._settings.step_s:g} s")
            return _Found(Score(None, None, "", why), None)
        return task.result()

    async def _found(self, step: Attempt, task: TaskSource, source: str, key: tuple[str, str]) -> _Found:
        knowledge, settings = self._knowledge, self._reward
        verdict, why = await self._verdict(step, task, source, key)
        if verdict is None:
            return _Found(self._unjudged(why), None)
        scored = self._score(task, verdict, key[1])
        jumped = bool(scored.again)
        if jumped and not self._known(key, confirmed=True):
            again, why = await self._verdict(step, task, source, None)
            second = self._unjudged(why) if again is None else self._score(task, again, key[1])
            if again is not None and (second.speedup or 0.0) < (scored.speedup or 0.0):
                verdict = again  # the lower speed, or the rejection, counts
            scored = measured_again(scored, second, settings)
            self._keep(key, None if scored.value is None else Kept(verdict, confirmed=True))
            if why in step.silences:
                step.silent(scored.why)
        said = await self._opinions(step, task, source, key, scored)
        if said is None:
            # Paying it would reward candidates that no judge can assess; lowering it would blame the candidate for a judge's fault.
            self.report.unanswered += 1
            return _Found(
                Score(None, None, "", "a judge has not answered about a speed that jumped"), verdict
            )
        doubts = list(said)
        # The referee's own findings come first: they also catch accepted candidates with decoy kernels.
        if scored.speedup is not None and (own := hacks_module.caught(verdict)) is not None:
            doubts.append(Opinion("caught", f"the referee's finding: {own[0]}", f"the referee: {own[0]}"))
        if knowledge.hacks is not None and scored.speedup is not None:
            doubts.append(knowledge.hacks.opinion(source))
        if knowledge.hacks is not None and knowledge.learns:
            knowledge.hacks.learn(source, verdict)
        return _Found(hacks_module.doubted(scored, doubts, settings), verdict, tuple(doubts))

    async def _opinions(
        self, step: Attempt, task: TaskSource, source: str, key: tuple[str, str], scored: Score
    ) -> Sequence[Opinion] | None:
        """The judges' opinions on a candidate, new or stored; None if a judge did not answer.

        Judges are called when a speed jumped and was confirmed, in this step or in an earlier one whose judges did not answer.
        """
        known, kept = self._knowledge, self._known(key, confirmed=True)
        if kept is not None and kept.opinions is not None:
            return kept.opinions
        if kept is None or scored.speedup is None or not known.judges:
            return ()
        hits = known.hacks.alike(source) if known.hacks is not None else []
        question = (task, source, scored.speedup, hits)
        said = [
            await _asked(judge, question, step.looks, self._settings.patience_s) for judge in known.judges
        ]
        answered = tuple(one for one in said if one is not None)
        if len(answered) < len(said):
            return None
        self._keep(key, replace(kept, opinions=answered))
        return answered

    def _score(self, task: TaskSource, verdict: Verdict, form: str) -> Score:
        known = self._knowledge
        if verdict.verdict == "accepted":
            measured_on = type_of(verdict.environment)
            if self.machine is None:
                self.machine = measured_on
            if measured_on != self.machine:
                return Score(
                    None, None, "", f"measured on {measured_on or 'nobody knows what'}, not {self.machine}"
                )
        elif other := elsewhere(verdict, self.machine):
            return Score(None, None, "", f"rejected on {other}, not {self.machine}")
        portfolio = known.portfolio(task.sha256, form) if self._reward.shaping == "marginal" else ()
        return score(verdict, self._reward, known.record(task.sha256), portfolio)

    def _unjudged(self, why: str) -> Score:
        if why.startswith(_OWN_FAULT):
            return Score(shaping(self._reward).floor, None, "", why)
        return Score(None, None, "", why)

    async def _verdict(
        self, step: Attempt, task: TaskSource, source: str, key: tuple[str, str] | None
    ) -> tuple[Verdict | None, str]:
        """Return a verdict, or None and the reason; with a key, an earlier verdict if there is one."""
        if key is not None and (known := self._known(key)) is not None:
            self.report.repeated += 1
            return known.verdict, ""
        why = ""
        for tried in range(self._settings.tries):
            if tried:
                await asyncio.sleep(_FIRST_PAUSE_S * 2 ** (tried - 1))
            async with step.turn:
                if step.gone:
                    return None, step.gone
                try:
                    async with asyncio.timeout(self._settings.patience_s):
                        verdict = await self._judge.judge(task, source)
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
                self._keep(key, Kept(verdict, confirmed=False))
                return verdict, ""
            if verdict.verdict == "task_rejected":
                return None, why
        return None, why

    def _known(self, key: tuple[str, str], *, confirmed: bool = False) -> Kept | None:
        """A candidate's earlier verdict; with `confirmed`, only one that was measured again."""
        found = self._kept.get(key)
        if found is None and self._verdicts is not None:
            found = self._verdicts.get(key)
        return found if found is not None and (found.confirmed or not confirmed) else None

    def _keep(self, key: tuple[str, str] | None, found: Kept | None) -> None:
        if key is None:
            return
        if found is None:
            self._kept.pop(key, None)
            if self._verdicts is not None:
                self._verdicts.drop(key)
            return
        if elsewhere(found.verdict, self.machine):
            return  # not stored: the candidate is judged again, perhaps on the right machine
        self._kept[key] = found
        self._kept.move_to_end(key)
        if self._verdicts is not None:
            self._verdicts.put(key, found)
        if len(self._kept) > _KEPT_VERDICTS:
            self._kept.popitem(last=False)

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
                f"nobody answered about any candidate of a step ({why}). Nothing is lost: bring the evaluators back and resume from the "
                "last checkpoint"
            )
        self._dead_steps = 0 if report.known else self._dead_steps + 1
        if self._dead_steps >= self._settings.dead_steps:
            raise FleetLost(
                f"none of the candidates of {self._dead_steps} steps in a row could be judged ({why}): see what is wrong with the evaluators "
                "or with these tasks, and resume from the last checkpoint"
            )


_OWN_FAULT = "cannot be submitted"


def text_of(completion: Any) -> str:
    """The text of a completion: the string itself, or the last turn of a conversation."""
    if isinstance(completion, str):
        return completion
    last = completion[-1] if isinstance(completion, Sequence) and completion else {}
    said = last.get("content") if isinstance(last, Mapping) else None
    return said if isinstance(said, str) else ""


async def _asked(
    judge: hacks_module.Judge,
    question: tuple[TaskSource, str, float, Sequence[hacks_module.Hit]],
    turn: asyncio.Semaphore,
    patience_s: float,
) -> Opinion | None:
    """A judge's opinion, or None if it fails. Waiting for a turn does not count toward the timeout."""
    try:
        async with turn, asyncio.timeout(patience_s):
            return await asyncio.to_thread(judge, *question)
    except Exception as error:  # noqa: BLE001 - a third-party program, over a network
        _log.warning("a judge of rewards failed: %s", str(error) or type(error).__name__)
        return None
