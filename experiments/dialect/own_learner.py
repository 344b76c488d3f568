"""The learner of the replay: a plain training loop, for machines without TRL and for many short runs on a CPU.

One update per batch of samples, so the ratio of new to old probabilities is 1 and GRPO's clipping has nothing to do: what is left is the policy
gradient with advantages of groups. :mod:`experiments.dialect.trl_learner` does the same with TRL's trainers.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import torch

from experiments.dialect.learning import GrpoSettings, Practice, SftSettings, StepRecord, advantages
from experiments.dialect.model import Policy, sample


def pad_pairs(
    policy: Policy, pairs: Sequence[tuple[str, str]]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(ids, mask, what is learned) of (prompt, program) pairs, each [pairs, length]; the program's end is learned, too.

    Raises:
        ValueError: a pair is longer than the context, or holds what is no token.
    """
    tokenizer = policy.tokenizer
    prompts = [tokenizer.encode(prompt, add_special_tokens=False) for prompt, _ in pairs]
    programs = [
        [*tokenizer.encode(program, add_special_tokens=False), tokenizer.eos_token_id] for _, program in pairs
    ]
    length = max(len(prompt) + len(program) for prompt, program in zip(prompts, programs, strict=True))
    if length > policy.model.config.max_position_embeddings:
        raise ValueError(f"a row of {length} tokens is longer than the context")
    ids = torch.full((len(pairs), length), tokenizer.pad_token_id)
    mask = torch.zeros_like(ids)
    learned = torch.zeros_like(ids)
    for row, (prompt, program) in enumerate(zip(prompts, programs, strict=True)):
        start = length - len(program) - len(prompt)
        ids[row, start:] = torch.tensor(prompt + program)
        mask[row, start:] = 1
        learned[row, length - len(program) :] = 1
    if (ids == tokenizer.unk_token_id).any():
        raise ValueError("a row holds text that is no phrase of the dialect")
    device = policy.model.device
    return ids.to(device), mask.to(device), learned.to(device)


class OwnLearner:
    """Implements :class:`experiments.dialect.learning.Learner`."""

    def imitate(
        self, policy: Policy, rows: Callable[[int], list[tuple[str, str]]], settings: SftSettings
    ) -> list[float]:
        """See :class:`experiments.dialect.learning.Learner`."""
        policy.model.train()
        optimizer = torch.optim.AdamW(policy.model.parameters(), lr=settings.learning_rate, weight_decay=0.01)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, settings.steps)
        losses = []
        for step in range(settings.steps):
            ids, mask, learned = pad_pairs(policy, rows(step))
            logits = _logits(policy, ids, mask)
            token_losses = torch.nn.functional.cross_entropy(
                logits[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none"
            )
            loss = (token_losses * learned[:, 1:]).sum() / learned[:, 1:].sum()
            _update(policy, optimizer, loss)
            schedule.step()
            losses.append(loss.item())
        return losses

    def reinforce(
        self, policy: Policy, practice: Practice, settings: GrpoSettings, seed: int
    ) -> list[StepRecord]:
        """See :class:`experiments.dialect.learning.Learner`."""
        optimizer = torch.optim.AdamW(policy.model.parameters(), lr=settings.learning_rate, weight_decay=0.0)
        records = []
        for step in range(settings.steps):
            asked = [question for question in practice.questions(step) for _ in range(settings.samples)]
            samples = sample(policy, [question.prompt for question in asked], seed * 1_000_003 + step)
            rewards = practice.reward([question.task for question in asked], samples.texts)
            gains = [
                gain
                for first in range(0, len(rewards), settings.samples)
                for gain in advantages(rewards[first : first + settings.samples], settings)
            ]
            policy.model.train()
            logits = _logits(policy, samples.ids, samples.mask)[:, samples.start - 1 : -1]
            probabilities = torch.log_softmax(logits, dim=-1)
            completions = samples.ids[:, samples.start :]
            counts = samples.mask[:, samples.start :]
            chosen = probabilities.gather(2, completions[:, :, None])[:, :, 0]
            entropies = -(probabilities.exp() * probabilities).sum(-1)
            entropy = (entropies * counts).sum() / counts.sum()
            # Every token of every sample weighs the same, however long its sample is (TRL's "dapo").
            gain_column = torch.tensor(gains, device=logits.device)[:, None]
            loss = -(gain_column * chosen * counts).sum() / counts.sum()
            if entropy.item() < settings.entropy_target:
                loss = loss - settings.entropy * entropy
            _update(policy, optimizer, loss)
            known = [reward for reward in rewards if reward is not None]
            records.append(StepRecord(step, statistics.fmean(known) if known else 0.0, entropy.item()))
        return records


def _logits(policy: Policy, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    output: torch.Tensor = policy.model(input_ids=ids, attention_mask=mask, position_ids=positions).logits
    return output


def _update(policy: Policy, optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(policy.model.parameters(), 1.0)
    optimizer.step()
