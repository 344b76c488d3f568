"""One of two ranks on the CPU.

    torchrun --nproc_per_node 2 -m tests.rl.training.spread           share a model's weights (FSDP 2), sample, and print what was seen
    torchrun --nproc_per_node 2 -m tests.rl.training.spread WORLD     train in a world, and write what was seen into files there

Who samples: rank 0's completion ends after a token, rank 1's goes on: a rank that asked for no more weights would leave the other one
waiting.
"""

from __future__ import annotations

import copy
import json
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import distributed
from torch.distributed.fsdp import fully_shard
from transformers import LlamaConfig, LlamaForCausalLM

from evaluator.verdict import Verdict
from rl.stages.sharded import sampling

_TOKENS = 64
_LONGEST = 12


def train(at: Path) -> None:
    """Two stages of `rl.train` with planted verdicts, and what this rank has seen of them."""
    from agent.strategy.novelty import fingerprint
    from evaluator.sources import TaskSource
    from rl.fleet import Fleet
    from rl.models import load_model
    from rl.ranks import Ranks
    from rl.train import chained, check, run
    from tests.rl.training.planted import Planted
    from tests.rl.training.world import contrastive_stage, selfsup_stage

    torch.set_num_threads(1)
    judged: list[tuple[str, str]] = []
    paid: list[dict[str, Any]] = []

    class Seen(Planted):
        """Keeps what it was asked about."""

        async def judge(self, task: TaskSource, source: str, *, whole: bool = False) -> Verdict:
            judged.append((task.sha256, fingerprint(source)))
            return await super().judge(task, source)

    before = Fleet.rewards

    async def rewards(self: Fleet, prompts: Any, completions: Any, task: Any, **more: Any) -> Any:
        step = more["trainer_state"].global_step + 1 if "trainer_state" in more else None
        paid.append({"step": step, "prompts": prompts, "tasks": task})
        return await before(self, prompts, completions, task, **more)

    Fleet.rewards = rewards  # type: ignore[method-assign]
    both = [str(at / "small.py"), str(at / "other.py")]
    stages = chained(
        (
            selfsup_stage(at, "two/selfsup", at / "sft" / "checkpoint", tasks=both, steps=2),
            contrastive_stage(at, "two/contrastive", None, tasks_a_step=2, steps=3),
        )
    )
    check(stages)
    run(stages, resume=False, judges=lambda _: Seen({}))
    ranks = Ranks()
    # As accelerate's FSDP settings say it, under which transformers gives zeros to ranks but the first.
    os.environ.update(ACCELERATE_USE_FSDP="true", FSDP_CPU_RAM_EFFICIENT_LOADING="true")
    part, path = stages[1].model, str(at / "sft" / "checkpoint")
    weights = {
        kind: sum(float(one.detach().abs().sum()) for one in load_model(path, part, whole=whole).parameters())
        for kind, whole in (("whole", True), ("sparing", False))
    }
    seen = {
        "number": ranks.number,
        "count": ranks.count,
        "judged": judged,
        "paid": paid,
        "weights": weights,
        "variable": os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"],
    }
    (at / f"seen-{os.environ['RANK']}.json").write_text(json.dumps(seen), "utf-8")
    ranks.wait()
    os._exit(0)  # see `main`


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
    adapted = _with_adapters(model)
    adapted_alone = _sampled(adapted, prompt, end)
    _share(model, model.model.layers)
    with sampling(model, torch.device("cpu")):
        found = _sampled(model, prompt, end)
    with sampling(model, torch.device("meta")):
        meanwhile = str(model.device)
    inner = adapted.get_base_model()
    _share(adapted, inner.model.layers)
    with sampling(adapted, torch.device("cpu")):
        adapted_found = _sampled(adapted, prompt, end)
    with sampling(adapted, torch.device("meta")):
        adapted_meanwhile = [str(inner.device), str(adapted.device), str(model.device)]
    # Training goes on where sampling has ended, and the other way round.
    loss = adapted(input_ids=prompt, labels=prompt).loss
    loss.backward()
    with sampling(adapted, torch.device("cpu")):
        adapted_again = _sampled(adapted, prompt, end)
    moved = sorted(name for name, weight in adapted.named_parameters() if weight.grad is not None)
    seen = {
        "alone": alone,
        "found": found,
        "whole": whole,
        "meanwhile": meanwhile,
        "after": str(model.device),
        "adapted": {
            "alone": adapted_alone,
            "found": adapted_found,
            "again": adapted_again,
            "meanwhile": adapted_meanwhile,
            "after": str(inner.device),
            "moved": [len(moved), all("lora" in name for name in moved)],
        },
    }
    both: list[Any] = [None, None]
    distributed.all_gather_object(both, seen)
    if rank == 0:
        print(json.dumps(both), flush=True)
    distributed.barrier()
    # Not by way of torch's own end: threads of a backend that is taken down abort one run in some.
    os._exit(0)


def _share(model: Any, layers: Any) -> None:
    """Weights of layers and of the whole in parts, as accelerate does it."""
    for layer in layers:
        fully_shard(layer)
    fully_shard(model)


def _with_adapters(model: Any) -> Any:
    """A copy below adapters that change what it says."""
    adapted: Any = get_peft_model(
        copy.deepcopy(model), LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM")
    )
    torch.manual_seed(1)
    for name, weight in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.5)
    return adapted.eval()


@torch.no_grad()
def _sampled(model: Any, prompt: torch.Tensor, end: int | None) -> list[int]:
    found = model.generate(prompt, max_new_tokens=_LONGEST, do_sample=False, pad_token_id=0, eos_token_id=end)
    tokens: list[int] = found[0, prompt.shape[1] :].tolist()
    return tokens


if __name__ == "__main__":
    train(Path(sys.argv[1])) if sys.argv[1:] else main()
