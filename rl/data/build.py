"""Turns proposals into rows: checks each against the evaluation tasks, makes its file, has it judged and records the result.

Every decision goes into a journal (`rl.journal`), so a killed build resumes after the last one. A proposal that could not be judged
because of an infrastructure fault is not a decision; the next run retries it. Each run ends by writing the whole file of rows from
the journal and repeating the overlap check, because the evaluation tasks may have changed since.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from agent.prompts.sizes import space_text
from agent.strategy.novelty import fingerprint
from evaluator.errors import EvaluatorError
from evaluator.fingerprint import type_of
from evaluator.keeping import replacing
from evaluator.sources import TaskSource, sha256_of
from evaluator.verdict import Verdict
from rl.data.lowering import NotMade, Workshop
from rl.data.proposals import LICENCES, Proposal
from rl.data.texts import analysis_text, as_asked, design_text, shapes_text, with_shown
from rl.decontamination import overlaps
from rl.errors import FleetLost, RLError
from rl.journal import Journal
from rl.judges import Judge, Unjudged
from rl.reward import FAULTS, speed_of
from rl.rows import Row, write_rows

#: Another number where `rl.data.meaning` digests modules in another way: old decisions would miss overlaps.
_KIND = "kernelwright.rows/2"
#: Consecutive evaluations without an answer after which the build stops: the fault will not clear by itself.
_GONE = 5
#: Evaluations of a proposal; after so many infrastructure faults it is left for the next run.
_TRIES = 2

#: Warnings allowed in a row: a kernel may hard-code the width of a module that has only one, and it was judged at other sizes.
_HARMLESS = frozenset({"hard_coded_shape"})

Outcome = Literal["accepted", "rejected", "not made", "overlap", "repeated"]


@dataclass
class Tally:
    """Counts of a run's outcomes; `missing` counts the reasons why proposals could not be judged."""

    outcomes: Counter[str] = field(default_factory=Counter)
    missing: Counter[str] = field(default_factory=Counter)
    known: int = 0


class _Overlaps(NotMade):
    """The module is also an evaluation task."""


class Builder:
    """One build; a context manager that holds the journal.

    Args:
        out: the file of rows; the journal and the provenance file are written next to it.
        evaluated: sources of the tasks that the model will be evaluated on, by name.
        judge: the referee.
        making: single-threaded executor (the workshop's thread) that makes files.
        workshop: answers queries about tasks in the same thread.
        on_progress: called after each decision.

    Raises:
        JournalError: the journal is damaged or belongs to another build.
    """

    def __init__(
        self,
        out: Path,
        evaluated: Mapping[str, str],
        judge: Judge,
        making: Executor,
        workshop: Workshop,
        *,
        on_progress: Callable[[Tally], None] = lambda _: None,
    ) -> None:
        self._out = out
        self._evaluated = dict(evaluated)
        self._judge = judge
        self._making = making
        self._workshop = workshop
        self._meanings: dict[str, str] = {}
        self._known_meanings: dict[str, str] = {}
        self._on_progress = on_progress
        self._dims: dict[str, Mapping[str, Any]] = {}
        self._gone = 0
        self.tally = Tally()
        self._journal = Journal(journal_of(out), _KIND)
        self._decided = {record["id"] for record in self._journal.records}
        self._seen = {record["form"] for record in self._journal.records if record.get("form")}

    def __enter__(self) -> Builder:
        return self

    def __exit__(self, *_: object) -> None:
        self._journal.close()

    async def run(self, proposals: Iterable[Proposal], width: int) -> Tally:
        """Decide all proposals that have no decision yet.

        Args:
            proposals: consumed one at a time as slots become free.
            width: maximum number of concurrent evaluations.

        Raises:
            FleetLost: no evaluator answers; earlier decisions are kept.
            JournalError: the disk is full; earlier decisions are kept.
        """
        # One slot more than `judging` has, to make the next proposal during an evaluation.
        room = asyncio.Semaphore(width + 1)
        judging = asyncio.Semaphore(width)

        async def one(proposal: Proposal) -> None:
            try:
                await self._decide(proposal, judging)
            finally:
                room.release()

        await asyncio.get_running_loop().run_in_executor(self._making, self._learn_meanings)
        try:
            async with asyncio.TaskGroup() as group:
                for proposal in proposals:
                    if proposal.id in self._decided:
                        self.tally.known += 1
                        continue
                    await room.acquire()
                    group.create_task(one(proposal))
        except ExceptionGroup as failures:
            # Not `except*`: before Python 3.11.4, an exception raised inside it is wrapped in a group again.
            lost, others = failures.split(RLError)
            if lost is None or others is not None:
                raise
            raise lost.exceptions[0] from None
        return self.tally

    async def _decide(self, proposal: Proposal, judging: asyncio.Semaphore) -> None:
        if like := self._overlap(proposal.id, proposal.task):
            self._write(proposal.id, "overlap", like)
            return
        try:
            candidate = await asyncio.get_running_loop().run_in_executor(self._making, self._made, proposal)
        except _Overlaps as error:
            self._write(proposal.id, "overlap", str(error))
            return
        except NotMade as error:
            self._write(proposal.id, "not made", str(error))
            return
        except EvaluatorError as error:
            self._miss(str(error))
            return
        form = fingerprint(candidate) + proposal.task.sha256[:16]
        if form in self._seen:
            self._write(proposal.id, "repeated", "the same program for the same module is there")
        else:
            self._seen.add(form)
            async with judging:
                await self._judged(proposal, candidate, form)

    def _made(self, proposal: Proposal) -> str:
        """Make the candidate file; runs in the workshop's thread."""
        task = proposal.task
        self._refuse_same(task)
        candidate = proposal.make()
        if task.sha256 not in self._dims:
            known = proposal.dims
            self._dims[task.sha256] = self._workshop.dims_of(task) if known is None else known
        return candidate

    def _refuse_same(self, task: TaskSource) -> None:
        if task.sha256 not in self._known_meanings:
            self._known_meanings[task.sha256] = self._workshop.meaning_of(task)
        same = self._meanings.get(self._known_meanings[task.sha256])
        if same:
            raise _Overlaps(f"computes what {same} does")

    def _learn_meanings(self) -> None:
        for name, source in self._evaluated.items():
            meaning = self._workshop.meaning_of(TaskSource(name, source))
            if meaning:
                self._meanings[meaning] = name

    async def _judged(self, proposal: Proposal, candidate: str, form: str) -> None:
        verdict = None
        for _ in range(_TRIES):
            try:
                verdict = await self._judge.judge(proposal.task, candidate)
            except Unjudged as error:
                why = str(error)
                if error.own_fault:
                    self._write(proposal.id, "rejected", why)
                    return
                self._gone = self._gone + 1 if error.gone else 0
                if self._gone >= _GONE:
                    raise FleetLost(f"{_GONE} evaluations in a row found no evaluator: {why}") from None
                if not error.again:
                    break
            else:
                self._gone = 0
                why = verdict.reason or verdict.verdict
                if verdict.verdict not in FAULTS - {"task_rejected"}:
                    break
                verdict = None
        if verdict is None:
            self._seen.discard(form)
            self._miss(why)
            return
        self._write_judged(proposal, candidate, form, verdict)

    def _write_judged(self, proposal: Proposal, candidate: str, form: str, verdict: Verdict) -> None:
        telling = [one for one in verdict.findings if one.severity != "info" and one.rule not in _HARMLESS]
        speed = speed_of(verdict) if verdict.verdict == "accepted" else None
        if verdict.verdict != "accepted":
            self._write(proposal.id, "rejected", verdict.verdict, form=form)
        elif telling:
            # The candidate is correct despite the warning, but the model should not learn to cause warnings.
            self._write(proposal.id, "rejected", f"accepted with the finding {telling[0].rule}", form=form)
        elif speed is None:
            self._write(proposal.id, "rejected", "accepted, but no visible shape was timed", form=form)
        else:
            dims = self._dims[proposal.task.sha256]
            row = row_of(proposal, candidate, dims, verdict, speed.geomean)
            self._write(
                proposal.id,
                "accepted",
                f"{speed.geomean:.2f}x",
                form=form,
                row=row.model_dump(exclude_defaults=True),
                provenance=provenance_of(proposal, candidate, verdict),
                meaning=self._known_meanings.get(proposal.task.sha256, ""),
            )

    def _overlap(self, name: str, task: TaskSource) -> str:
        found = overlaps({name: task.source}, self._evaluated)
        return f"{found[0].share:.0%} like {found[0].task}" if found else ""

    def _write(self, name: str, outcome: Outcome, why: str, **more: Any) -> None:
        self._journal.append([{"id": name, "outcome": outcome, "why": why[:500], **more}])
        self._decided.add(name)
        self.tally.outcomes[outcome] += 1
        self._on_progress(self.tally)

    def _miss(self, why: str) -> None:
        self.tally.missing[" ".join(why.split())[:200]] += 1
        self._on_progress(self.tally)

    def decisions(self) -> dict[str, str]:
        """Return the decision on each proposal and its reason, from this run and earlier ones."""
        return {one["id"]: f"{one['outcome']}: {one['why']}" for one in self._journal.records}

    def export(self, seed: int) -> int:
        """Write the rows and their provenance; return the number of rows.

        Args:
            seed: selects the exemplars that rows show, see `rl.data.texts`.

        Raises:
            DataError: the disk is full; the files are unchanged.
        """
        accepted = [record for record in self._journal.records if record["outcome"] == "accepted"]
        rows = [Row.model_validate(record["row"]) for record in accepted]
        like = {one.row for one in overlaps({row.id: row.source for row in rows}, self._evaluated)}
        like |= {record["id"] for record in accepted if record.get("meaning") in self._meanings}
        kept = [row for row in rows if row.id not in like]
        names = {row.id for row in kept}
        write_rows(self._out, as_asked(with_shown(kept, seed), seed))
        lines = [{"id": record["id"], **record["provenance"]} for record in accepted if record["id"] in names]
        _write_lines(provenance_path(self._out), lines)
        return len(kept)


def journal_of(out: Path) -> Path:
    """Return the path of the decision journal for a file of rows."""
    return out.with_name(f"{out.name}.journal")


def provenance_path(out: Path) -> Path:
    """Return the path of the provenance file, which records each row's origin and license."""
    return out.with_name(f"{out.stem}.provenance.jsonl")


def row_of(
    proposal: Proposal, candidate: str, dims: Mapping[str, Any], verdict: Verdict, speedup: float
) -> Row:
    """Build the row of an accepted proposal."""
    return Row.model_validate(
        {
            "id": proposal.id,
            "task": proposal.task.name,
            "source": proposal.task.source,
            "device": proposal.device,
            "candidate": candidate,
            "origin": proposal.origin,
            "dims": space_text(dims),
            "shapes": shapes_text(verdict),
            "machine": type_of(verdict.environment),
            "speedup": speedup,
            "analysis": analysis_text(proposal.operations),
            "design": design_text(candidate),
        }
    )


def provenance_of(proposal: Proposal, candidate: str, verdict: Verdict) -> dict[str, Any]:
    """Return a row's origin, license and measurement environment."""
    environment = verdict.environment
    return {
        "source": proposal.source,
        "about": dict(proposal.about),
        "licence": LICENCES[proposal.source],
        "task_sha256": proposal.task.sha256,
        "candidate_sha256": sha256_of(candidate),
        "measured_at": verdict.measured_at,
        "effort": verdict.effort,
        "environment": {
            name: environment.get(name)
            for name in ("device_name", "torch", "triton", "driver", "harness", "fingerprint")
        },
    }


def _write_lines(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    with replacing(path) as file:
        for line in lines:
            file.write(json.dumps(line) + "\n")
