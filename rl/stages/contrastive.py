"""GRPO on the referee's rewards, with scored exemplars in the prompt.

Prompts are drawn when the data loader requests them. It prefetches one step ahead, so the prompts of step n show what was known
before step n - 1. A draw is a function of (seed, place, task, machine, snapshot), and the snapshot is a function of the step, so a
resumed run draws the same prompts.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.strategy.novelty import fingerprint
from evaluator.sources import TaskSource
from rl import checkpoints, models, tasks
from rl.checkpoints import Checkpoint
from rl.config import ContrastiveStage
from rl.errors import CheckpointError, ConfigError, DataError
from rl.exemplars import Draw, ExemplarDatabase, Success
from rl.judges import machine_of
from rl.metrics import StepLog, of_samples
from rl.prompts import contrastive_prompt
from rl.ranks import Ranks
from rl.rows import successes_of, text_of_task
from rl.stages.judging import Bench, JudgeOf, bench
from rl.stages.trainers import Grpo, Ledger, batches, options, train
from rl.step_report import Report

_log = logging.getLogger(__name__)
#: Snapshot 0 is the empty database; snapshot 1 holds the initial exemplars.
_BEGINNING = 1


def run(stage: ContrastiveStage, ranks: Ranks, judge_of: JudgeOf, held_out: Iterable[str] = ()) -> Path:
    """Train, and return the folder of the finished model.

    Args:
        stage: its config; the caller has claimed the folder.
        ranks: the processes of this run.
        judge_of: creates the judge.
        held_out: evaluation tasks of the other stages of a list.

    Raises:
        RLError: see `rl.errors`; the message says whether and how to resume.
    """
    known = tasks.of_stage(stage, held_out)
    path = stage.model.path
    if path is None:
        raise DataError(f"the stage {stage.name!r} has no model to begin with: give `model.path`")
    tokenizer = models.load_tokenizer(path)
    special = models.special_tokens(tokenizer)
    kept = checkpoints.newest(stage.output)
    if ranks.first:
        checkpoints.clear_after(stage.output, kept)
    record = kept.record if kept else {}
    machine = record.get("machine") or machine_of(stage.fleet)
    with ExitStack() as stack:
        exemplars = _database(stage, known, machine, kept, ranks, special, stack)
        bench_ = stack.enter_context(
            bench(
                stage,
                known,
                ranks,
                judge_of,
                group=stage.group,
                position=int(record.get("hacks", 0)),
                machine=machine,
                record=lambda task: exemplars.record(task, bench_.fleet.machine or ""),
            )
        )
        machine_since = record.get("machine_since", 0 if machine else None)
        state = _State(stage, known, exemplars, bench_, kept.step if kept else 0, machine_since)
        trainer = _trainer(stage, path, tokenizer, special, state, ranks)
        train(trainer, stage.output, Ledger(stage, state.log, state.end_step, state.record))
        return models.save_final(trainer, path, tokenizer, stage.model, stage.output)


@dataclass
class _State:
    """State that changes with the steps, besides the weights."""

    stage: ContrastiveStage
    tasks: Mapping[str, TaskSource]
    exemplars: ExemplarDatabase
    bench: Bench
    done: int
    #: The first snapshot at which the type of machine was known; draws from earlier snapshots show nothing.
    machine_since: int | None

    def __post_init__(self) -> None:
        first, output = self.bench.ranks.first, self.stage.output
        self.log = StepLog(output / "metrics.jsonl", self.done) if first else None
        self._samples = StepLog(output / "samples.jsonl", self.done) if first else None

    def end_step(self, step: int) -> dict[str, Any]:
        """Add the findings of all ranks to the databases, and return the step's metrics."""
        ranks, fleet = self.bench.ranks, self.bench.fleet
        reports = self.bench.reports()
        found = _undoubted(ranks.all(fleet.successes()), reports)
        self.bench.learn(reports)
        if ranks.first:
            # Sort: the order must not depend on the ranks.
            self.exemplars.advance(sorted(found, key=lambda one: (one.task, one.source, one.speedup)))
        fleet.machine = ranks.from_first(fleet.machine)
        ranks.wait()
        if not ranks.first:
            self.exemplars.follow()
        if self.machine_since is None and fleet.machine:
            self.machine_since = self.exemplars.snapshot
        if self._samples is not None:
            self._samples.append(of_samples(step, reports))
        return {**self.bench.figures(reports), "snapshot": snapshot_of(step)}

    def record(self) -> dict[str, Any]:
        """The state to store in a checkpoint."""
        return {
            "snapshot": self.exemplars.snapshot,
            "hacks": self.bench.hacks.position,
            "machine": self.bench.fleet.machine,
            "machine_since": self.machine_since,
        }

    def draw(self, step: int, place: int, task: str) -> Draw:
        """Draw the exemplars of a prompt."""
        snapshot = snapshot_of(step)
        machine = self.bench.fleet.machine
        if not machine or self.machine_since is None or snapshot < self.machine_since:
            return Draw((), snapshot)
        # Two places of a step may have the same task; they should show different exemplars.
        seed = self.stage.seed * 65_537 + place
        return self.exemplars.draw(seed, self.tasks[task].sha256, machine, snapshot)


def _undoubted(found: Iterable[Success], reports: Iterable[Report]) -> list[Success]:
    """Drop successes that any rank's judges or databases doubt: ranks check separately but share the exemplars."""
    doubted = {
        fingerprint(one.answer.source)
        for report in reports
        for one in report.samples
        if one.answer.source is not None and any(doubt.word != "nothing" for doubt in one.doubts)
    }
    return [one for one in found if fingerprint(one.source) not in doubted]


def snapshot_of(step: int) -> int:
    """The snapshot for a step's prompts: the newest one when the loader requests them, one step ahead."""
    return _BEGINNING + max(0, step - 2)


class _Prompts:
    """A dataset transform that makes each row's prompt for its step.

    It must have no side effects, since the loader requests more rows than it uses.
    """

    def __init__(self, state: _State, tokenizer: Any, special: tuple[str, ...]) -> None:
        self._state = state
        self._tokenizer = tokenizer
        self._special = special

    def __call__(self, batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        drawn: dict[tuple[int, int], Any] = {}
        for step, place, task in zip(batch["step"], batch["place"], batch["task"], strict=True):
            if (step, place) not in drawn:
                drawn[step, place] = self._prompt(step, place, task)
        places = zip(batch["step"], batch["place"], strict=True)
        return {**batch, "prompt": [drawn[key] for key in places]}

    def __reduce__(self) -> tuple[type, tuple[()]]:
        # Pickled only for the dataset's fingerprint, which need not depend on the database.
        return dict, ()

    def _prompt(self, step: int, place: int, task: str) -> Any:
        state = self._state
        text = text_of_task(state.tasks[task].source, "", "", state.stage.fleet.device)
        draw = state.draw(step, place, task)
        # Show only the fastest exemplar, or none, if more would leave no room for an answer in the model's context.
        for shown in dict.fromkeys((draw.shown, draw.shown[-1:], ())):
            messages = contrastive_prompt(text, Draw(shown, draw.snapshot), self._special)
            prompt = models.prompt_value(self._tokenizer, messages)
            used = models.token_count(self._tokenizer, prompt)
            if used + state.stage.max_tokens <= self._tokenizer.model_max_length:
                return prompt
        raise ConfigError(
            f"the prompt of {task!r} has {used} tokens, and an answer of `max_tokens` {state.stage.max_tokens} does not fit beside it into "
            f"the model's {self._tokenizer.model_max_length}"
        )


def _trainer(
    stage: ContrastiveStage, path: str, tokenizer: Any, special: tuple[str, ...], state: _State, ranks: Ranks
) -> Grpo:
    from datasets import Dataset
    from trl import GRPOConfig

    total = stage.tasks_a_step * stage.group
    size, accumulated = batches(total, stage.micro_batch, ranks.count, stage.group)
    rows = [
        {"prompt": "", "step": step, "place": place, "task": task}
        for step in range(1, stage.steps + 1)
        for place, task in enumerate(tasks.of_step(stage.seed, step, stage.tasks_a_step, list(state.tasks)))
    ]
    dataset = Dataset.from_list(rows)
    dataset.set_transform(_Prompts(state, tokenizer, special))
    config = GRPOConfig(
        **options(stage, stage.output, stage.steps),
        **engine_options(stage),
        per_device_train_batch_size=size,
        gradient_accumulation_steps=accumulated,
        num_generations=stage.group,
        max_completion_length=stage.max_tokens,
        temperature=stage.temperature,
        # Sample from the whole distribution: truncation biases the ratio between policy and sampler.
        top_p=1.0,
        top_k=0,
        beta=stage.beta,
        epsilon=stage.epsilon,
        epsilon_high=stage.epsilon_high,
        entropy_coef=stage.entropy,
        # The fleet has already normalized rewards within their groups and clipped them.
        scale_rewards="none",
        loss_type="dr_grpo",
    )
    return Grpo(
        models.load_model(path, stage.model),
        [state.bench.rewards],
        config,
        train_dataset=dataset,
        processing_class=tokenizer,
        peft_config=models.adapters(stage.model),
        paid=state.bench.check,
    )


def engine_options(stage: ContrastiveStage) -> dict[str, Any]:
    """The sampling engine's options for `GRPOConfig`."""
    generation = stage.generation
    if generation.engine == "transformers":
        # Gradient checkpointing turns the KV cache off, even for sampling; each token would then recompute its whole prefix.
        return {"use_vllm": False, "generation_kwargs": {"use_cache": True}}
    if generation.engine == "vllm-server":
        return {"use_vllm": True, "vllm_mode": "server", "vllm_server_base_url": generation.url}
    return {
        "use_vllm": True,
        "vllm_mode": "colocate",
        "vllm_gpu_memory_utilization": generation.memory_share,
        "vllm_enable_sleep_mode": True,
    }


def _database(
    stage: ContrastiveStage,
    known: Mapping[str, TaskSource],
    machine: str | None,
    kept: Checkpoint | None,
    ranks: Ranks,
    special: tuple[str, ...],
    stack: ExitStack,
) -> ExemplarDatabase:
    """Open the exemplar database as of the checkpoint, or with its initial exemplars if there is no checkpoint."""
    path = stage.output / "exemplars.journal"
    if ranks.first:
        exemplars = stack.enter_context(ExemplarDatabase(path, stage.exemplars, special_tokens=special))
        snapshot = int(kept.record["snapshot"]) if kept else 0
        if snapshot > exemplars.snapshot:
            raise CheckpointError(
                f"{path} ends at snapshot {exemplars.snapshot}, before the checkpoint {kept.path if kept else ''}; restore it from a copy"
            )
        exemplars.rewind(snapshot)
        if not snapshot:
            exemplars.advance(_beginning(stage, known, machine))
    ranks.wait()
    if not ranks.first:
        exemplars = stack.enter_context(
            ExemplarDatabase(path, stage.exemplars, write=False, special_tokens=special)
        )
    return exemplars


def _beginning(
    stage: ContrastiveStage, known: Mapping[str, TaskSource], machine: str | None
) -> list[Success]:
    """Initial successes from rows, only for this stage's tasks and type of machine; for any type while it is unknown."""
    if stage.exemplars.begin_with is None:
        return []
    timed = successes_of(stage.exemplars.begin_with, known.values())
    found = [one for one in timed if one.machine == (machine or one.machine)]
    if len(found) < len(timed):
        others = ", ".join(sorted({one.machine for one in timed} - {str(machine)}))
        _log.warning(
            "%d of %d exemplars to begin with are of another type of machine (%s) than rewards are (%s), and are left out",
            len(timed) - len(found),
            len(timed),
            others,
            machine,
        )
    return found
