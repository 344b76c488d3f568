"""Supervised fine-tuning on verified rows: the first stage, and the last part of each `selfsup` round."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from evaluator.counting import counted
from rl import checkpoints, models, tasks
from rl.config import SelfsupStage, SftStage
from rl.decontamination import refuse_overlaps
from rl.errors import DataError
from rl.metrics import StepLog
from rl.ranks import Ranks
from rl.rows import Row, answer_of, messages_of, modules, prompt_of, read_rows, teachable
from rl.stages.trainers import Ledger, Sft, batches, options, train

_log = logging.getLogger(__name__)


def run(stage: SftStage, ranks: Ranks, held_out: Iterable[str] = ()) -> Path:
    """Train, and return the folder of the finished model.

    Args:
        stage: its config; the caller has claimed the folder.
        ranks: the processes of this run.
        held_out: evaluation tasks of the other stages of a list.

    Raises:
        RLError: see `rl.errors`; the message says whether and how to resume.
    """
    rows = clean_rows(stage, held_out)
    path = beginning(stage, rows, ranks)
    tokenizer = models.load_tokenizer(path)
    kept = checkpoints.newest(stage.output)
    if ranks.first:
        checkpoints.clear_after(stage.output, kept)
    ranks.wait()
    log = StepLog(stage.output / "metrics.jsonl", kept.step if kept else 0) if ranks.first else None
    trainer = imitate(
        stage, stage.output, stage.steps, rows, path, tokenizer, ranks, Ledger(stage, log), stage.max_tokens
    )
    return models.save_final(trainer, path, tokenizer, stage.model, stage.output)


def clean_rows(stage: SftStage, held_out: Iterable[str] = ()) -> list[Row]:
    """Read the rows of a stage, and refuse rows about evaluation tasks.

    Raises:
        DataError: there are no rows.
        ContaminatedError: some rows are about evaluation tasks.
    """
    rows = read_rows(stage.data)
    evaluated = tasks.sources(tasks.named(dict.fromkeys([*stage.held_out, *held_out])))
    refuse_overlaps(modules(rows), evaluated)
    return rows


def beginning(stage: SftStage, rows: Sequence[Row], ranks: Ranks) -> str:
    """The path of the initial model: the config's, or a fresh model made for these rows."""
    if stage.model.fresh is None:
        if stage.model.path is None:
            raise DataError(
                f"the stage {stage.name!r} has no model to begin with: give `model.path` or `model.fresh`"
            )
        return stage.model.path
    if ranks.first:
        models.make_fresh(stage, [text for row in rows for text in (prompt_of(row), answer_of(row))])
    ranks.wait()
    return str(stage.output / checkpoints.BASE)


def imitate(
    stage: SftStage | SelfsupStage,
    folder: Path,
    steps: int,
    rows: Sequence[Row],
    path: str,
    tokenizer: Any,
    ranks: Ranks,
    ledger: Ledger,
    most: int,
) -> Any:
    """Train on rows in a seeded order, from the folder's newest checkpoint, and return the trainer.

    Rows longer than `most` tokens are left out.

    Raises:
        DataError: every row is too long or must not be taught.
    """
    from datasets import Dataset
    from trl import SFTConfig

    most = min(most, tokenizer.model_max_length)
    pairs = _pairs(rows, tokenizer, most)
    size, accumulated = batches(stage.batch, stage.micro_batch, ranks.count)
    config = SFTConfig(
        **options(stage, folder, steps),
        per_device_train_batch_size=size,
        gradient_accumulation_steps=accumulated,
        max_length=most,
        completion_only_loss=True,
        packing=False,
        train_sampling_strategy="sequential",
    )
    trainer = Sft(
        models.load_model(path, stage.model),
        config,
        train_dataset=Dataset.from_list(pairs),
        processing_class=tokenizer,
        peft_config=models.adapters(stage.model),
    )
    order = order_of(stage.seed, len(pairs), steps * stage.batch)
    trainer.train_dataset = trainer.train_dataset.select(order)
    train(trainer, folder, ledger)
    return trainer


def order_of(seed: int, rows: int, count: int) -> list[int]:
    """Row indices for all steps: passes over all rows, each pass shuffled anew."""
    order: list[int] = []
    turn = 0
    while len(order) < count:
        one = list(range(rows))
        random.Random(f"{seed}/rows/{turn}").shuffle(one)  # noqa: S311 - a reproducible draw
        order += one
        turn += 1
    return order[:count]


def _pairs(rows: Sequence[Row], tokenizer: Any, most: int) -> list[dict[str, Any]]:
    special = models.special_tokens(tokenizer)
    pairs, unteachable, long = [], 0, 0
    for row in rows:
        if not teachable(row, special):
            unteachable += 1
            continue
        prompt = models.prompt_value(tokenizer, messages_of(row, special))
        completion = models.completion_value(tokenizer, answer_of(row))
        # Drop instead of truncate: truncated files would teach the model to truncate.
        if models.token_count(tokenizer, prompt, completion) > most:
            long += 1
        else:
            pairs.append({"prompt": prompt, "completion": completion})
    if unteachable or long:
        _log.warning(
            "of %d rows %d are longer than %d tokens and %d hold text that the model's chat format gives a meaning: left out",
            len(rows), long, most, unteachable,
        )  # fmt: skip
    if not pairs:
        raise DataError(
            f"none of {counted(len(rows), 'row')} can be trained on: {long} are longer than {most} tokens (`max_tokens`, or what the model reads), {unteachable} hold "
            "text that the model's chat format gives a meaning"
        )
    return pairs
