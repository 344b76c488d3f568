"""Self-supervised rounds: sample, judge, keep accepted candidates, fine-tune on them, repeat. Speed is not rewarded (CUDA-L1, stage 2).

Each round has its own folder: `judged.json` marks its samples as judged, `checkpoint/` marks it as finished. If a run is killed within
a round, it redraws the same samples after a restart and takes the verdicts it already has from the journal of verdicts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from agent.strategy.novelty import fingerprint
from evaluator.counting import counted
from evaluator.sources import TaskSource
from rl import checkpoints, models, tasks
from rl.config import SelfsupStage
from rl.errors import DataError, FleetLost
from rl.exemplars import Draw
from rl.metrics import StepLog, of_samples
from rl.prompts import contrastive_prompt
from rl.ranks import Ranks
from rl.rows import Row, read_rows, text_of_task, write_rows
from rl.stages.judging import Bench, JudgeOf, bench
from rl.stages.sft import imitate
from rl.stages.trainers import Ledger

_log = logging.getLogger(__name__)
_ROWS = "rows.jsonl"
_JUDGED = "judged.json"


def run(stage: SelfsupStage, ranks: Ranks, judge_of: JudgeOf, held_out: Iterable[str] = ()) -> Path:
    """Train, and return the folder of the finished model.

    Args:
        stage: its config; the caller has claimed the folder.
        ranks: the processes of this run.
        judge_of: creates the judge.
        held_out: evaluation tasks of the other stages of a list.

    Raises:
        DataError: no candidate was accepted in any round.
        RLError: see `rl.errors`; the message says whether and how to resume.
    """
    known = tasks.of_stage(stage, held_out)
    if stage.model.path is None:
        raise DataError(f"the stage {stage.name!r} has no model to begin with: give `model.path`")
    rounds = [_Round(stage, number, known, ranks) for number in range(1, stage.rounds + 1)]
    log = _log_of(stage, rounds) if ranks.first else None
    path, rows = stage.model.path, list[Row]()
    with ExitStack() as stack:
        at: Bench | None = None
        for one in rounds:
            if not one.judged.exists():
                if at is None:
                    judging = bench(
                        stage, known, ranks, judge_of, group=stage.samples, position=one.position()
                    )
                    at = stack.enter_context(judging)
                one.sample_and_judge(path, rows, at)
            rows = read_rows(one.rows) if one.rows.exists() else []
            if not rows:
                _log.warning(
                    "round %d: no candidate was accepted so far; the model stays as it is", one.number
                )
                continue
            if checkpoints.whole(one.folder / checkpoints.FINAL) is None:
                one.learn(path, rows, log)
            path = str(one.folder / checkpoints.FINAL)
    if not rows:
        raise DataError(
            f"in {counted(stage.rounds, 'round')} no candidate of the stage {stage.name!r} was accepted, so there is nothing to learn from: train "
            "`sft` longer, or on rows of these tasks"
        )
    if ranks.first:
        write_rows(stage.output / "successes.jsonl", rows)
        with checkpoints.replaced(stage.output / checkpoints.FINAL) as part:
            model = models.load_model(path, stage.model)
            model.save_pretrained(part)
            models.load_tokenizer(path).save_pretrained(part)
    ranks.wait()
    return stage.output / checkpoints.FINAL


class _Round:
    """One round, in its own folder.

    Args:
        stage: its config.
        number: the round's number, from 1.
        known: the stage's tasks.
        ranks: the processes of the run.
    """

    def __init__(
        self, stage: SelfsupStage, number: int, known: Mapping[str, TaskSource], ranks: Ranks
    ) -> None:
        self.number = number
        self.folder = stage.output / f"round-{number}"
        self.rows = self.folder / _ROWS
        self.judged = self.folder / _JUDGED
        self.steps = stage.steps // stage.rounds
        self._stage = stage
        self._known = known
        self._ranks = ranks

    @property
    def offset(self) -> int:
        """Optimizer steps of the earlier rounds."""
        return (self.number - 1) * self.steps

    def sample_and_judge(self, path: str, before: list[Row], at: Bench) -> None:
        """Sample for every task, judge, and write the accepted candidates together with earlier rows."""
        ranks = self._ranks
        mine = {name: self._known[name] for name in sorted(self._known)[ranks.number :: ranks.count]}
        prompts, completions, asked = self._samples(path, mine)
        if asked:
            asyncio.run(at.rewards(prompts, completions, task=asked))
        at.check()
        self._keep(at, before)

    def learn(self, path: str, rows: list[Row], log: StepLog | None) -> None:
        """Fine-tune on all rows accepted so far."""
        stage, ranks = self._stage, self._ranks
        if ranks.first:
            checkpoints.clear_after(self.folder, checkpoints.newest(self.folder))
        ranks.wait()
        first = checkpoints.read_json(self.judged)["figures"]
        ledger = Ledger(stage, log, offset=self.offset, round=self.number, first=first)
        tokenizer = models.load_tokenizer(path)
        trainer = imitate(
            stage, self.folder, self.steps, rows, path, tokenizer, ranks, ledger, tokenizer.model_max_length
        )
        models.save_final(trainer, path, tokenizer, stage.model, self.folder)

    def _samples(self, path: str, mine: Mapping[str, TaskSource]) -> tuple[list[Any], list[str], list[str]]:
        """Sample prompts, completions and task names, as a function of the seed, the round, the task and the weights."""
        stage = self._stage
        tokenizer = models.load_tokenizer(path)
        model = models.load_model(path, stage.model, whole=True)
        if torch.cuda.is_available():
            model.to(torch.device("cuda", torch.cuda.current_device()))
        model.eval()
        prompts: list[Any] = []
        completions: list[str] = []
        asked: list[str] = []
        for name, task in mine.items():
            text = text_of_task(task.source, "", "", stage.fleet.device)
            messages = contrastive_prompt(text, Draw((), 0), models.special_tokens(tokenizer))
            prompt = models.prompt_value(tokenizer, messages)
            made = models.sample(
                model,
                tokenizer,
                prompt,
                count=stage.samples,
                temperature=stage.temperature,
                most=stage.max_tokens,
                seed=tasks.seed_of(stage.seed, self.number, name),
            )
            completions += [text for text, _ in made]
            prompts += [prompt] * stage.samples
            asked += [name] * stage.samples
        return prompts, completions, asked

    def _keep(self, at: Bench, before: list[Row]) -> None:
        stage, ranks = self._stage, self._ranks
        reports = at.reports()
        unheard = sum(report.unheard for report in reports)
        # If other candidates were judged, drop one that always crashes its evaluator: a retry would fail the same way.
        if unheard and any(report.cut or not report.heard for report in reports):
            every = sum(len(report.samples) for report in reports)
            why = next(reason for report in reports if report.unheard for reason in report.missing)
            raise FleetLost(
                f"no evaluator answered about {unheard} of {every} completions of round {self.number} ({why}). Nothing is lost: bring the evaluators "
                "back and go on with --resume auto; what was judged is not judged again"
            )
        at.learn(reports)
        found = ranks.all(at.fleet.successes())
        if ranks.first:
            rows = {(row.task, fingerprint(row.candidate)): row for row in before}
            by_digest = {task.sha256: task for task in self._known.values()}
            for one in sorted(found, key=lambda one: (one.task, one.source)):
                task, form = by_digest[one.task], fingerprint(one.source)
                rows.setdefault(
                    (task.name, form),
                    Row(
                        id=f"{task.name}/{self.number}/{form[:12]}",
                        task=task.name,
                        source=task.source,
                        device=stage.fleet.device,
                        candidate=one.source,
                        origin="policy",
                        machine=one.machine,
                        speedup=one.speedup,
                    ),
                )
            self.folder.mkdir(parents=True, exist_ok=True)
            if rows:
                write_rows(self.rows, rows.values())
            figures = at.figures(reports)
            figures.pop("waited_s")
            StepLog(stage.output / "samples.jsonl", self.offset).append(of_samples(self.offset + 1, reports))
            checkpoints.write_json(self.judged, {"hacks": at.hacks.position, "figures": figures})
        ranks.wait()

    def position(self) -> int:
        """Position of the database of hacks after the previous round was judged."""
        if self.number == 1:
            return 0
        before = self._stage.output / f"round-{self.number - 1}" / _JUDGED
        return int(checkpoints.read_json(before)["hacks"])


def _log_of(stage: SelfsupStage, rounds: list[_Round]) -> StepLog:
    """The log of metrics, cut after the newest checkpoint of the rounds."""
    done = 0
    for one in rounds:
        kept = checkpoints.newest(one.folder)
        if checkpoints.whole(one.folder / checkpoints.FINAL) is not None:
            done = one.offset + one.steps
        elif kept is not None:
            done = one.offset + kept.step
    return StepLog(stage.output / "metrics.jsonl", done)
