"""The learner of the live run: TRL's `SFTTrainer` and `GRPOTrainer`, by the same interface as the replay's own.

Tried with TRL 1.16.0 and transformers 5.17.0. TRL's loader asks for a batch ahead of the one that is trained on, so exemplars are one step older here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from experiments.dialect.learning import GrpoSettings, Practice, SftSettings, StepRecord, advantages
from experiments.dialect.model import Policy

# Before TRL is loaded: each trainer would report that it was made.
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"


class _Prompts:
    """A dataset's transform: each row's prompt as the practice would ask it now."""

    def __init__(self, practice: Practice) -> None:
        self._practice = practice

    def __call__(self, batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        asked = {step: self._practice.questions(step) for step in set(batch["step"])}
        texts = [asked[step][place].prompt for step, place in zip(batch["step"], batch["place"], strict=True)]
        return {**batch, "prompt": texts}

    def __reduce__(self) -> tuple[type, tuple[()]]:
        # Pickled only for a fingerprint of the dataset, which need not follow everything that was measured.
        return dict, ()


class TrlLearner:
    """Implements :class:`experiments.dialect.learning.Learner`.

    Args:
        folder: TRL's output folder; no checkpoints are written to it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def _options(self, policy: Policy, steps: int, learning_rate: float) -> dict[str, Any]:
        on_cpu = policy.model.device.type == "cpu"
        return {
            "output_dir": str(self._folder),
            "max_steps": steps,
            "learning_rate": learning_rate,
            "use_cpu": on_cpu,
            "bf16": not on_cpu,
            "gradient_checkpointing": False,
            "report_to": "none",
            "save_strategy": "no",
            "logging_steps": 1,
            "disable_tqdm": True,
            "dataloader_num_workers": 0,
            "max_grad_norm": 1.0,
        }

    def imitate(
        self, policy: Policy, rows: Callable[[int], list[tuple[str, str]]], settings: SftSettings
    ) -> list[float]:
        """See :class:`experiments.dialect.learning.Learner`."""
        from datasets import Dataset
        from trl import SFTConfig, SFTTrainer

        pairs = [pair for step in range(settings.steps) for pair in rows(step)]
        config = SFTConfig(
            **self._options(policy, settings.steps, settings.learning_rate),
            per_device_train_batch_size=settings.batch,
            lr_scheduler_type="cosine",
            max_length=policy.model.config.max_position_embeddings,
            completion_only_loss=True,
        )
        dataset = Dataset.from_list([{"prompt": prompt, "completion": program} for prompt, program in pairs])
        trainer = SFTTrainer(policy.model, config, train_dataset=dataset, processing_class=policy.tokenizer)
        trainer.train()
        return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]

    def reinforce(
        self, policy: Policy, practice: Practice, settings: GrpoSettings, seed: int
    ) -> list[StepRecord]:
        """See :class:`experiments.dialect.learning.Learner`. Advantages are made in the reward, since TRL has no bound for them."""
        from datasets import Dataset
        from trl import GRPOConfig, GRPOTrainer

        places = len(practice.questions(0))
        means: list[float] = []

        def worth(
            completions: Sequence[str], step: Sequence[int], place: Sequence[int], **_: Any
        ) -> list[float | None]:
            # Tasks depend on the step alone; exemplars may have changed since the prompt was written.
            tasks = [practice.questions(number)[at].task for number, at in zip(step, place, strict=True)]
            rewards = practice.reward(tasks, completions)
            known = [reward for reward in rewards if reward is not None]
            means.append(sum(known) / len(known) if known else 0.0)
            gains: list[float | None] = []
            for first in range(0, len(rewards), settings.samples):
                group = rewards[first : first + settings.samples]
                gains += [
                    None if reward is None else gain
                    for reward, gain in zip(group, advantages(group, settings), strict=True)
                ]
            return gains

        rows = [
            {"prompt": "", "step": step, "place": place}
            for step in range(settings.steps)
            for place in range(places)
        ]
        dataset = Dataset.from_list(rows)
        dataset.set_transform(_Prompts(practice))
        config = GRPOConfig(
            **self._options(policy, settings.steps, settings.learning_rate),
            per_device_train_batch_size=places * settings.samples,
            num_generations=settings.samples,
            max_completion_length=policy.longest,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            lr_scheduler_type="constant",
            shuffle_dataset=False,
            scale_rewards="none",
            loss_type="dapo",
            beta=0.0,
            use_adaptive_entropy=True,
            entropy_coef=settings.entropy,
            entropy_coef_delta=0.0,
            entropy_target=settings.entropy_target,
            seed=seed,
        )
        trainer = GRPOTrainer(
            policy.model, worth, config, train_dataset=dataset, processing_class=policy.tokenizer
        )
        trainer.train()
        entropies = [entry.get("entropy") for entry in trainer.state.log_history if "reward" in entry]
        return [
            StepRecord(step, mean, entropies[step] if step < len(entropies) else None)
            for step, mean in enumerate(means)
        ]
