"""One of two ranks that share a model's weights (FSDP 2, on the CPU) and sample from it; prints what it has seen.

    torchrun --nproc_per_node 2 -m tests.rl.training.spread

Rank 0's completion ends after a token, rank 1's goes on: a rank that asked for no more weights would leave the other one waiting.
"""

from __future__ import annotations

import json
import os
from datetime import timedelta
from typing import Any

import torch
from torch import distributed
from torch.distributed.fsdp import fully_shard
from transformers import LlamaConfig, LlamaForCausalLM

from rl.stages.sharded import sampling

_TOKENS = 64
_LONGEST = 12


def main() -> None:
    """See above."""
    distributed.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank = distributed.get_rank()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=_TOKENS, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2
    )
    model: Any = LlamaForCausalLM(config).eval()
    prompt = torch.tensor([[5 + rank, 9, 2]])
    free = _sampled(model, prompt, None)
    said: list[Any] = [None, None]
    distributed.all_gather_object(said, free)
    end = next(token for token in said[0] if token not in said[1])
    alone = _sampled(model, prompt, end)
    with sampling(model, torch.device("meta")):
        whole = str(model.device)
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    with sampling(model, torch.device("cpu")):
        found = _sampled(model, prompt, end)
    with sampling(model, torch.device("meta")):
        meanwhile = str(model.device)
    seen = {
        "alone": alone,
        "found": found,
        "whole": whole,
        "meanwhile": meanwhile,
        "after": str(model.device),
    }
    both: list[Any] = [None, None]
    distributed.all_gather_object(both, seen)
    if rank == 0:
        print(json.dumps(both), flush=True)
    distributed.barrier()
    # Not by way of torch's own end: threads of a backend that is taken down abort one run in some.
    os._exit(0)


@torch.no_grad()
def _sampled(model: Any, prompt: torch.Tensor, end: int | None) -> list[int]:
    found = model.generate(prompt, max_new_tokens=_LONGEST, do_sample=False, pad_token_id=0, eos_token_id=end)
    tokens: list[int] = found[0, prompt.shape[1] :].tolist()
    return tokens


if __name__ == "__main__":
    main()
