"""A small causal transformer with fresh weights, and sampling from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast


@dataclass(frozen=True)
class ModelSize:
    """Of a transformer; ``context`` in tokens."""

    layers: int = 2
    width: int = 64
    heads: int = 4
    context: int = 256


#: About 0.1M parameters, in both exhibits.
REPLAY = ModelSize()


@dataclass
class Policy:
    """A model with its tokenizer; ``longest`` bounds a completion in tokens, its end included."""

    model: Any
    tokenizer: PreTrainedTokenizerFast
    longest: int

    def parameters(self) -> int:
        """How many numbers are trained."""
        return sum(weight.numel() for weight in self.model.parameters())


@dataclass(frozen=True)
class Samples:
    """What was sampled for some prompts, in their order.

    Attributes:
        texts: completions without their end. One that did not end within the bound is a text like any other: no program.
        ids: int64 [prompts, prompt + completion], prompts padded on the left, completions on the right.
        mask: int64, the same shape: 1 where a token counts, ends included.
        start: where completions begin.
    """

    texts: list[str]
    ids: torch.Tensor
    mask: torch.Tensor
    start: int


def build_policy(tokenizer: PreTrainedTokenizerFast, size: ModelSize, longest: int, seed: int) -> Policy:
    """A policy with random weights that depend on the seed alone."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=size.width,
        intermediate_size=2 * size.width,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.heads,
        max_position_embeddings=size.context,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng(devices=[]):  # made on the CPU; by default every GPU would be asked
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    return Policy(model, tokenizer, longest)


def encode(policy: Policy, prompts: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and mask of prompts, padded on the left, where the model is.

    Raises:
        ValueError: a prompt leaves no room in the context for a completion.
    """
    batch = policy.tokenizer(list(prompts), return_tensors="pt", padding=True, return_token_type_ids=False)
    room = policy.model.config.max_position_embeddings - policy.longest
    if batch["input_ids"].shape[1] > room:
        raise ValueError(
            f"a prompt has {batch['input_ids'].shape[1]} tokens, and {room} leave room for a program"
        )
    return batch["input_ids"].to(policy.model.device), batch["attention_mask"].to(policy.model.device)


@torch.no_grad()
def sample(policy: Policy, prompts: Sequence[str], seed: int) -> Samples:
    """One completion per prompt, from the whole distribution at temperature 1, at most ``policy.longest`` tokens.

    Args:
        policy: is left in the mode of evaluation.
        prompts: texts.
        seed: what is drawn depends on it, the weights and the prompts alone.
    """
    ids, mask = encode(policy, prompts)
    policy.model.eval()
    devices = [ids.device] if ids.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        whole = policy.model.generate(
            input_ids=ids,
            attention_mask=mask,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            max_new_tokens=policy.longest,
        )
    start = ids.shape[1]
    completions = whole[:, start:]
    ends = completions == policy.tokenizer.eos_token_id
    before = (
        torch.cumsum(ends, dim=1) - ends.long() == 0
    )  # the first end counts as a token, what follows is padding
    texts = [
        str(policy.tokenizer.decode(row[keep & ~end]))
        for row, keep, end in zip(completions, before, ends, strict=True)
    ]
    return Samples(texts, whole, torch.cat([mask, before.long()], dim=1), start)
