"""What the cache of keys and values is worth in sampling: the same checkpoint with and without it, in turns.

Without it each new token reads all before it anew, which is what GRPO did under gradient checkpointing until `rl.stages.contrastive` asked for the cache.

    python -m benchmarks.rl_sampling runs/half-billion/sft/checkpoint --out sampling.json
"""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.exemplars_cpu import environment
from evaluator.devices import open_device
from evaluator.environment import measured_on
from rl import models
from rl.config import ModelPart
from rl.intervals import ratio_of_means


def sampled_s(model: Any, ids: torch.Tensor, tokens: int, *, cached: bool) -> float:
    """Seconds that so many tokens of each prompt took."""
    _wait()
    began = time.perf_counter()
    made = model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        do_sample=True,
        min_new_tokens=tokens,
        max_new_tokens=tokens,
        use_cache=cached,
    )
    _wait()
    if made.shape[1] != ids.shape[1] + tokens:
        raise RuntimeError(f"{made.shape[1] - ids.shape[1]} tokens were sampled instead of {tokens}")
    return time.perf_counter() - began


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def main(
    checkpoint: Annotated[str, typer.Argument(help="Folder of a model.")],
    out: Annotated[Path, typer.Option(help="JSON.")],
    prompts: Annotated[int, typer.Option(min=1, help="Completions at a time.")] = 16,
    length: Annotated[int, typer.Option(min=1, help="Tokens of a prompt.")] = 256,
    tokens: Annotated[int, typer.Option(min=1, help="To sample for each.")] = 256,
    rounds: Annotated[int, typer.Option(min=2)] = 4,
) -> None:
    """Time sampling with and without the cache."""
    console = Console(width=120)
    place = "cuda" if torch.cuda.is_available() else "cpu"
    part = ModelPart(path=checkpoint, train="lora", precision="bf16" if place == "cuda" else "fp32")
    model = models.load_model(checkpoint, part).to(place).eval()
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(2, int(model.config.vocab_size), (prompts, length), generator=generator).to(place)
    with torch.inference_mode():
        for cached in (True, False):
            sampled_s(model, ids, 8, cached=cached)
        taken: dict[bool, list[float]] = {True: [], False: []}
        for turn in range(rounds):
            for cached in (True, False) if turn % 2 == 0 else (False, True):
                taken[cached].append(sampled_s(model, ids, tokens, cached=cached))
    ratio = ratio_of_means(np.array([taken[False]]), np.array([taken[True]]))
    table = Table("cache", "s", "tokens/s")
    for cached, times in taken.items():
        middle = statistics.median(times)
        table.add_row("yes" if cached else "no", f"{middle:.2f}", f"{prompts * tokens / middle:.0f}")
    console.print(table)
    console.print(f"without over with: {ratio.value:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]", markup=False)
    document = {
        "program": "benchmarks.rl_sampling",
        "settings": {"prompts": prompts, "length": length, "tokens": tokens, "rounds": rounds},
        "weights": sum(one.numel() for one in model.parameters()),
        "environment": {**environment(), **(measured_on(open_device("cuda")) if place == "cuda" else {})},
        "with_s": taken[True],
        "without_s": taken[False],
        "ratio": {"value": ratio.value, "low": ratio.low, "high": ratio.high},
    }
    out.write_text(json.dumps(document) + "\n", encoding="utf-8")
    console.print(f"wrote {out}")


if __name__ == "__main__":
    typer.run(main)
