"""Run folders as `rl.train` writes them, made up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

NASTY = "</style><script>alert(1)</script><img src=x onerror=alert(2)>{{ 7*7 }}"


def make_run(folder: Path, steps: int = 12, name: str = "sft") -> Path:
    """A run's folder with something of everything; texts that whoever wrote them would like to be executed among it."""
    folder.mkdir(parents=True)
    config = {
        "stage": "contrastive",
        "name": name,
        "steps": steps,
        "seed": 3,
        "tasks": ["softmax"],
        "held_out": ["rmsnorm"],
    }
    config["model"] = {"path": NASTY, "train": "lora"}
    (folder / "config.json").write_text(json.dumps(config))
    lines = [
        {
            "step": step,
            "stage": "contrastive",
            "loss": 2.0 / step,
            "speedup_mean": 0.5 + 0.1 * step,
            "hacks": step % 3,
        }
        for step in range(1, steps + 1)
    ]
    (folder / "metrics.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in lines) + '{"step": 13, "lo'
    )
    samples = [
        {
            "step": 1,
            "task": "softmax",
            "source": "x = 1\ny = 2\n",
            "word": "accepted",
            "speedup": 0.8,
            "why": "0.80x",
        },
        {"step": 1, "task": "softmax", "source": "worse", "word": "accepted", "speedup": 0.1, "why": "0.10x"},
        {
            "step": 12,
            "task": "softmax",
            "source": f"x = 1\n# {NASTY}\n",
            "word": "accepted",
            "speedup": 2.5,
            "why": "2.50x",
        },
        {
            "step": 4,
            "task": "softmax",
            "source": "",
            "word": "cheating",
            "speedup": None,
            "why": "rejected: cheating",
            "caught": f"the referee: cheating {NASTY}",
        },
        {
            "step": 6,
            "task": "softmax",
            "source": "",
            "word": "cheating",
            "speedup": None,
            "why": "rejected: cheating",
            "caught": f"the referee: cheating {NASTY}",
        },
        {"step": 5, "task": "softmax", "source": "", "word": None, "speedup": None, "why": "no_code"},
    ]
    (folder / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in samples))
    return folder


COMPARISON: dict[str, Any] = {
    "schema": "kernelwright.comparison/1",
    "machine": "NVIDIA H200",
    "before": {
        "mean": {"value": 0.9, "low": 0.8, "high": 1.0},
        "best": {"value": 1.2, "low": 1.1, "high": 1.3},
        "judged": 24,
    },
    "after": {
        "mean": {"value": 1.8, "low": 1.7, "high": 2.0},
        "best": {"value": 2.4, "low": 2.2, "high": 2.6},
        "judged": 24,
    },
    "after_over_before": {
        "mean": {"ratio": {"value": 2.0, "low": 1.6, "high": 2.4}, "word": "gain"},
        "best": {"ratio": None, "word": "no success before"},
    },
    "tasks": [
        {
            "task": "rmsnorm",
            "before": {"source": "a", "source_speedup": 1.0},
            "after": {"source": "b", "source_speedup": 2.0},
        }
    ],
}
