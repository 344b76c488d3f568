"""Configs: what stands in the repository loads, and a mistake is one sentence with the nearest right name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kernelbench_tasks import catalog
from rl.config import ContrastiveStage, load, parse
from rl.errors import ConfigError

CONFIGS = sorted((Path(__file__).parents[2] / "rl" / "configs").glob("*.yaml"))
LEAST = {"stage": "contrastive", "name": "x", "output": "runs/x", "steps": 3}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_that_ships_loads_and_names_tasks_that_exist(path: Path) -> None:
    known = {task.name for task in catalog.list_tasks()}
    for stage in load(path):
        assert {*stage.tasks, *stage.held_out} <= known


def test_the_pipeline_without_a_gpu_has_the_three_stages_in_order() -> None:
    stages = load(CONFIGS[0].parent / "cpu.yaml")
    assert [stage.stage for stage in stages] == ["sft", "selfsup", "contrastive"]
    assert isinstance(stages[2], ContrastiveStage)
    assert stages[2].fleet.device == "cpu"


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"stage": "contrast"}, "there is no stage 'contrast'; stages are .*; did you mean `contrastive`?"),
        ({"stage": None}, "no `stage` is named"),
        ({"stage": ["sft"]}, "there is no stage"),
        ({"grop": 3}, "`grop` is no setting; did you mean `group`?"),
        ({"exemplars": {"taus": 1}}, "`exemplars.taus` is no setting; did you mean `tau`?"),
        ({"zzzz": 1}, "`zzzz` is no setting; there are beta, "),
        ({"exemplars": {"tau": -1}}, "`exemplars.tau` is -1; it must be greater than 0"),
        ({"exemplars": {"tau": float("nan")}}, "`exemplars.tau` is nan; it must be a finite number"),
        ({"fleet": {"width": True}}, "`fleet.width` is True; it must be a number"),
        ({"group": 1}, "`group` is 1; it must be greater than or equal to 2"),
        ({"reward": {"shaping": "raw"}}, "`reward.shaping` is 'raw'; it must be 'clipped', 'log'"),
        ({"epsilon_high": 0.1}, "the stage has an `epsilon_high` below its `epsilon`"),
        ({"reward": {"best_of": 9}}, "the stage has a `reward.best_of` above its `group` of 8"),
        ({"fleet": {"patience_s": 10}}, "`fleet` has a `patience_s` below its `deadline_s`"),
        (
            {"fleet": {"first_look": {"adversarial": 3}}},
            "`fleet` has a `first_look` without `visible` shapes",
        ),
        (
            {"fleet": {"first_look": {"visible": 2}, "url": "http://127.0.0.1:8000"}},
            "`fleet` has a `first_look`, which is of sampled shapes",
        ),
        ({"tasks": ["a"], "held_out": ["a"]}, "'a' both in `tasks` and in `held_out`"),
        ({"model": {"path": "a", "fresh": {"model_type": "llama"}}}, "`model` has both"),
        ({"model": {"fresh": {}}}, "without `model_type`"),
    ],
)
def test_a_wrong_setting_is_one_sentence(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence.replace("?", r"\?")) as told:
        parse({**LEAST, **wrong}, "run.yaml")
    assert str(told.value).startswith("run.yaml: ")
    assert "\n" not in str(told.value)


def test_a_missing_setting_is_named_and_a_misspelled_one_first() -> None:
    without = {name: value for name, value in LEAST.items() if name != "steps"}
    with pytest.raises(ConfigError, match="`steps` is missing"):
        parse(without, "run.yaml")
    with pytest.raises(ConfigError, match="`step` is no setting; did you mean `steps`"):
        parse({**without, "step": 3}, "run.yaml")


def test_a_rate_in_the_notation_that_yaml_reads_as_text_is_a_number(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(
        "stage: contrastive\nname: x\noutput: o\nsteps: 1\noptimizer: {learning_rate: 1e-6}\n", "utf-8"
    )
    assert load(file)[0].optimizer.learning_rate == 1e-6


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("stage: sft\nsteps: 1\nsteps: 2\n", "`steps` stands there twice"),
        ("stage: [", "is no YAML"),
        ("- 1\n", "must be settings"),
        ("pipeline: []\n", "must be a list"),
        ("pipeline: [a.yaml]\nseed: 1\n", "`seed` stands beside `pipeline`"),
        ("pipeline: [a.yaml]\n", "cannot be read"),
        ("x: !!python/object/apply:os.getcwd []\n", "is no YAML"),
        ("x: '" + "a" * (1 << 16) + "'\n", "larger than"),
    ],
)
def test_a_file_that_is_no_config_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(text, "utf-8")
    with pytest.raises(ConfigError, match=sentence):
        load(file)
