"""A world in which training takes seconds: rows of one small task, a model of some thousand weights, and configs for them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from rl.config import AnyStage, parse
from rl.rows import Row, ShownRow, write_rows

MACHINE = "NVIDIA H200"
TASK = """import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x) + 1.0


def get_inputs():
    return [torch.randn(8, 8)]


def get_init_inputs():
    return []
"""
#: Another task to whoever goes by digests, and the same to the model.
OTHER = TASK + "\n"
PROGRAM = """import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return {}
"""
WAYS = [PROGRAM.format(f"torch.relu(x) + 1.0 * {n}") for n in range(1, 7)]
FRESH = {
    "model_type": "llama",
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 512,
}
_MODEL = {"precision": "fp32", "train": "full"}
_COMMON = {"name": "test", "held_out": ["rmsnorm"], "save_every": 2}
_FLEET = {"device": "cpu", "machine": MACHINE, "width": 1, "tries": 1}


def speed_of(source: str) -> float:
    """A speed by a rule: the same program is always as fast."""
    return 0.8 + int(hashlib.sha256(source.strip().encode()).hexdigest()[:4], 16) / 65536


def world(folder: Path) -> Path:
    """A folder with the rows and the task file of a run; its path."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for number, way in enumerate(WAYS):
        for turn in range(4):
            others = [WAYS[(number + 1 + turn) % 6], WAYS[(number + 3 + 2 * turn) % 6]]
            shown = [ShownRow(source=one, speedup=speed_of(one)) for one in others] if turn > 1 else []
            row = Row(
                id=f"{number}/{turn}",
                task=("small", "other")[turn % 2],
                source=(TASK, OTHER)[turn % 2],
                device="cpu",
                candidate=way,
                machine=MACHINE,
                speedup=speed_of(way),
                shown=tuple(shown),
            )
            rows.append(row)
    write_rows(folder / "pairs.jsonl", rows)
    (folder / "small.py").write_text(TASK, "utf-8")
    (folder / "other.py").write_text(OTHER, "utf-8")
    return folder


def sft_stage(at: Path, output: str, **more: Any) -> AnyStage:
    """Supervised training in a world."""
    return parse(
        {
            "stage": "sft",
            "output": str(at / output),
            "data": str(at / "pairs.jsonl"),
            "steps": 5,
            "batch": 4,
            "max_tokens": 500,
            "model": {"fresh": FRESH, "vocabulary": 4096, **_MODEL},
            "optimizer": {"learning_rate": 4e-3},
            **_COMMON,
            **more,
        },
        "sft",
    )


def selfsup_stage(at: Path, output: str, model: Path, **more: Any) -> AnyStage:
    """Self-supervised rounds in a world."""
    return parse(
        {
            "stage": "selfsup",
            "output": str(at / output),
            "steps": 6,
            "rounds": 2,
            "samples": 4,
            "batch": 2,
            "max_tokens": 40,
            "tasks": [str(at / "small.py")],
            "model": {"path": str(model), **_MODEL},
            "optimizer": {"learning_rate": 1e-3},
            "fleet": _FLEET,
            **_COMMON,
            **more,
        },
        "selfsup",
    )


def contrastive_stage(at: Path, output: str, model: Path | None, **more: Any) -> AnyStage:
    """GRPO in a world."""
    return parse(
        {
            "stage": "contrastive",
            "output": str(at / output),
            "steps": 5,
            "group": 4,
            "tasks_a_step": 1,
            "max_tokens": 40,
            "tasks": [str(at / "small.py"), str(at / "other.py")],
            "model": {"path": str(model) if model else None, **_MODEL},
            "optimizer": {"learning_rate": 1e-3},
            "fleet": _FLEET,
            **_COMMON,
            "save_every": 1,
            **more,
        },
        "contrastive",
    )
