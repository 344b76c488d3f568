"""What samples while GRPO trains: transformers is run by the training tests, vLLM is not; its options are TRL's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rl.config import ContrastiveStage, parse


@pytest.mark.parametrize(
    "generation",
    [
        {"engine": "transformers"},
        {"engine": "vllm-colocate", "memory_share": 0.25},
        {"engine": "vllm-server", "url": "http://127.0.0.1:9"},
    ],
)
def test_trl_takes_the_options_of_every_engine(generation: dict[str, Any], tmp_path: Path) -> None:
    from trl import GRPOConfig

    from rl.stages.contrastive import engine_options

    settings = {"stage": "contrastive", "name": "n", "output": str(tmp_path), "steps": 1}
    stage = parse({**settings, "generation": generation}, "c.yaml")
    assert isinstance(stage, ContrastiveStage)
    options = engine_options(stage)
    config = GRPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to="none", **options)
    assert config.use_vllm == (generation["engine"] != "transformers")
    assert {name: getattr(config, name) for name in options} == options
    # vLLM's own sampling parameters know no cache, and refuse what they do not know.
    assert ("generation_kwargs" in options) == (generation["engine"] == "transformers")
