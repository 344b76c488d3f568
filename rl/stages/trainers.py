"""Shared code of the stages' trainers: TRL's options, atomic checkpoints, one line of metrics per step, and a graceful stop."""

from __future__ import annotations

import importlib.util
import logging
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rl import checkpoints, models  # models first: it disables telemetry before TRL is loaded
from rl.config import Stage
from rl.errors import CheckpointError, ConfigError, FleetLost, Stopped
from rl.metrics import StepLog, step_line
from rl.ranks import TIMEOUT_S, Ranks
from rl.stages.sharded import sampling

import numpy as np  # isort: skip
import torch  # isort: skip
from transformers import PrinterCallback, TrainerCallback  # isort: skip
from transformers.utils.logging import disable_progress_bar  # isort: skip
from datasets.utils.logging import disable_progress_bar as disable_dataset_bars  # isort: skip
from trl import GRPOTrainer, SFTTrainer  # isort: skip

_log = logging.getLogger(__name__)
disable_progress_bar()
disable_dataset_bars()

__all__ = ["Grpo", "Ledger", "Sft", "asked_to_stop", "batches", "models", "options", "train"]


@dataclass
class Ledger:
    """A stage's hooks and metrics for the trainer; all ranks call the hooks.

    Attributes:
        stage: its config.
        log: the log of metrics; None except on rank 0.
        end_step: called with the step's number after the weights are updated; returns the step's metrics.
        record: returns the state to store in a checkpoint.
        offset: steps done before this trainer's first step.
        round: the round of `selfsup`.
        first: metrics for this trainer's first step only.
    """

    stage: Stage
    log: StepLog | None
    end_step: Callable[[int], Mapping[str, Any]] = lambda _: {}
    record: Callable[[], Mapping[str, Any]] = dict
    offset: int = 0
    round: int | None = None
    first: dict[str, Any] = field(default_factory=dict)


class _WholeCheckpoints:
    """Ends training with a clear error if a checkpoint cannot be written; earlier checkpoints stay intact."""

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        state, args = self.state, self.args  # type: ignore[attr-defined]
        try:
            super()._save_checkpoint(model, trial)  # type: ignore[misc]
        except (
            Exception
        ) as error:  # a full disk raises OSError, torch's RuntimeError or safetensors' own error
            raise checkpoints.unwritable(
                Path(args.output_dir) / f"checkpoint-{state.global_step}", error
            ) from error
        # Each rank writes its own file; rank 0 seals the checkpoint after all have finished.
        self.accelerator.wait_for_everyone()  # type: ignore[attr-defined]

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Write no model card, which would name this machine's paths."""


class Sft(_WholeCheckpoints, SFTTrainer):  # type: ignore[misc]
    """TRL's `SFTTrainer`."""


class Grpo(_WholeCheckpoints, GRPOTrainer):  # type: ignore[misc]
    """TRL's `GRPOTrainer`; if all advantages of all ranks are zero, a step changes neither the weights nor the optimizer.

    Args:
        paid: called on all ranks once they have their rewards; an exception from it ends training before the step.
    """

    _dead = False

    def __init__(self, *args: Any, paid: Callable[[], None], **more: Any) -> None:
        super().__init__(*args, **more)
        self._paid = paid
        self.add_callback(_Still(self))

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        with sampling(self.accelerator.unwrap_model(self.model_wrapped), self.accelerator.device):
            scored = super()._generate_and_score_completions(inputs)
        self._paid()
        # Decide over all ranks: a rank that alone skipped the update would diverge from the others' weights.
        alive = (scored["advantages"] != 0).any().float().reshape(1)
        self._dead = not bool(self.accelerator.gather(alive).any())
        return scored


class _Still(TrainerCallback):  # type: ignore[misc]
    """Sets a dead step's gradients to None: with zero gradients, momentum and weight decay would still change the weights."""

    def __init__(self, trainer: Grpo) -> None:
        self._trainer = trainer

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """See `TrainerCallback`."""
        if self._trainer._dead:
            for weight in self._trainer.model.parameters():
                weight.grad = None


class Keeper(TrainerCallback):  # type: ignore[misc]
    """Seals checkpoints, writes metrics, and stops a run after the step in which a stop was requested."""

    def __init__(self, ledger: Ledger, tokens: float = 0) -> None:
        self._ledger = ledger
        self._ranks = Ranks()
        self._tokens_before = self._tokens = tokens
        self._began_s = time.monotonic()
        self._step_began_s = self._began_s
        self._known: dict[str, Any] = {}
        self._ended: Callable[[Any], None] | None = None
        self._saved = 0
        if torch.cuda.is_available():
            # An earlier stage in the same process may have had a higher peak.
            torch.cuda.reset_peak_memory_stats()

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """See `TrainerCallback`."""
        self._step_began_s = time.monotonic()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        """See `TrainerCallback`."""
        self._known = dict(self._ledger.end_step(state.global_step))
        # A signal may reach the ranks in different steps; a rank that continued alone would wait for the others.
        seen = self._ranks.all([(asked_to_stop(), _peak_memory_gib())])
        self._known["peak_memory_gib"] = max((peak for _, peak in seen if peak is not None), default=None)
        if any(stop for stop, _ in seen):
            control.should_save = control.should_training_stop = True
        self._ended = _as_now(state)
        return control

    def save_last_step(self, trainer: Any) -> None:
        """Save the last finished step in the state it ended with, after a later step failed; all ranks call it."""
        if self._ended is not None and self._saved < trainer.state.global_step:
            self._ended(trainer.state)
            trainer._save_checkpoint(trainer.model, None)
            self.on_save(trainer.args, trainer.state, trainer.control)

    def on_log(
        self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **_: Any
    ) -> None:
        """See `TrainerCallback`."""
        ledger, logs = self._ledger, logs or {}
        if "loss" not in logs:
            return
        self._tokens = self._tokens_before + float(logs.get("num_tokens") or 0)
        if ledger.log is None:
            return
        now_s = time.monotonic()
        step_s = now_s - self._step_began_s
        known, waited_s = dict(self._known), self._known.get("waited_s")
        known.pop("waited_s", None)
        if waited_s is not None:
            known["idle_share"] = min(waited_s / step_s, 1.0) if step_s > 0 else None
        line = {
            "step": ledger.offset + state.global_step,
            "stage": ledger.stage.stage,  # type: ignore[attr-defined]  # every subclass of Stage defines it
            "time_s": now_s - self._began_s,
            "step_s": step_s,
            "loss": logs["loss"],
            "learning_rate": logs.get("learning_rate"),
            "gradient_norm": logs.get("grad_norm"),
            "entropy": logs.get("entropy"),
            "tokens": int(self._tokens),
            "round": ledger.round,
            **(ledger.first if state.global_step == 1 else {}),
            **known,
        }
        ledger.log.append([step_line(**line)])
        _log.info("%s", _told(line, ledger.stage.steps))

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """See `TrainerCallback`."""
        self._saved = state.global_step
        record = {**self._ledger.record(), "tokens": self._tokens}
        if state.is_world_process_zero:
            path = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            checkpoints.seal(path, state.global_step, record)


def _as_now(state: Any) -> Callable[[Any], None]:
    """Capture the random states and the token count; the returned function restores them, since the next step changes them."""
    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    cuda = torch.cuda.get_rng_state() if torch.cuda.is_available() else None
    tokens = state.num_input_tokens_seen

    def bring_back(state: Any) -> None:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(cpu)
        if cuda is not None:
            torch.cuda.set_rng_state(cuda)
        state.num_input_tokens_seen = tokens

    return bring_back


def _peak_memory_gib() -> float | None:
    return torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else None


def _told(line: Mapping[str, Any], steps: int) -> str:
    """One line about a step for people."""
    parts = [f"step {line['step']}/{steps}", f"loss {line['loss']:.4f}"]
    if line.get("completions") is not None:
        parts.append(f"{line['judged']} judged, {line['cached']} known, {line['missing']} without a reward")
    if line.get("speedup_mean") is not None:
        parts.append(f"mean speedup {line['speedup_mean']:.2f}")
    if line.get("peak_memory_gib") is not None:
        parts.append(f"{line['peak_memory_gib']:.1f} GiB")
    return " · ".join([*parts, f"{line['step_s']:.1f} s"])


def options(stage: Stage, folder: Path, steps: int, *, precise: bool | None = None) -> dict[str, Any]:
    """TRL's options shared by all stages.

    Args:
        stage: its config.
        folder: the folder of checkpoints.
        steps: number of steps of this trainer.
        precise: whether to compute in float32; by default as in the config.
    """
    on_cpu = not torch.cuda.is_available()
    fp32 = stage.model.precision == "fp32" if precise is None else precise
    board = importlib.util.find_spec("tensorboard") is not None
    if board:
        os.environ["TENSORBOARD_LOGGING_DIR"] = str(folder / "tensorboard")
    return {
        "output_dir": str(folder),
        "max_steps": steps,
        "learning_rate": stage.optimizer.learning_rate,
        "lr_scheduler_type": "constant_with_warmup" if stage.optimizer.warmup_steps else "constant",
        "warmup_steps": stage.optimizer.warmup_steps,
        "max_grad_norm": stage.optimizer.max_gradient_norm,
        "use_cpu": on_cpu,
        "bf16": not fp32 and not on_cpu,
        "gradient_checkpointing": stage.model.gradient_checkpointing,
        "seed": stage.seed % 2**32,
        "save_strategy": "steps",
        "save_steps": stage.save_every,
        "save_total_limit": 2,
        "logging_steps": 1,
        "logging_nan_inf_filter": False,
        "report_to": ["tensorboard"] if board else "none",
        "disable_tqdm": True,
        "dataloader_num_workers": 0,
        "ddp_timeout": TIMEOUT_S,
        "shuffle_dataset": False,
    }


def batches(total: int, at_once: int | None, ranks: int, multiple: int = 1) -> tuple[int, int]:
    """A rank's micro-batch size and number of accumulation steps.

    Args:
        total: sequences of a step over all ranks.
        at_once: maximum micro-batch size; None for no limit.
        ranks: number of ranks.
        multiple: each rank's share of a step must be a multiple of this.

    Raises:
        ConfigError: the total cannot be divided like this.
    """
    share, rest = divmod(total, ranks)
    if rest or share % multiple:
        needed = ranks * multiple
        raise ConfigError(
            f"a step of {total} sequences cannot be shared out to {ranks} ranks in whole groups; make it a multiple of {needed}"
        )
    most = min(at_once or share, share)
    size = next(size for size in range(most, 0, -1) if share % size == 0)
    return size, share // size


def train(trainer: Any, folder: Path, ledger: Ledger) -> None:
    """Train, starting from the folder's newest complete checkpoint if there is one.

    Raises:
        Stopped: a stop was requested; the last step is saved.
        FleetLost: a step got no rewards; the previous step is saved.
        CheckpointError: a checkpoint cannot be written or read.
    """
    trainer.remove_callback(PrinterCallback)
    kept = checkpoints.newest(folder)
    # `GRPOTrainer` stores its token count in its checkpoints; `SFTTrainer` does not.
    counted = float(kept.record.get("tokens", 0)) if kept and isinstance(trainer, Sft) else 0
    keeper = Keeper(ledger, counted)
    trainer.add_callback(keeper)
    try:
        trainer.train(resume_from_checkpoint=str(kept.path) if kept else None)
    except FleetLost:
        keeper.save_last_step(trainer)
        raise
    except (OSError, KeyError, RuntimeError) as error:
        if kept is not None and isinstance(error, OSError | KeyError) and str(kept.path) in str(error):
            raise CheckpointError(f"{kept.path} cannot be read: {error}") from error
        raise
    if trainer.state.global_step < trainer.args.max_steps:
        raise Stopped(
            f"training was asked to end and has saved step {ledger.offset + trainer.state.global_step}; go on with --resume auto"
        )


_STOP = threading.Event()


def asked_to_stop() -> bool:
    """Whether a `stoppable` block has received a signal."""
    return _STOP.is_set()


@contextmanager
def stoppable() -> Iterator[None]:
    """Treat SIGTERM, which clusters send before they reclaim a node, as a request to stop after this step.

    A second SIGTERM ends the process at once.
    """

    def ask(number: int, frame: Any) -> None:
        if _STOP.is_set():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.raise_signal(signal.SIGTERM)
        _STOP.set()

    before = signal.signal(signal.SIGTERM, ask)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        _STOP.clear()
