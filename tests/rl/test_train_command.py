"""`python -m rl.train`: what is wrong with a config or its data is one sentence and status 2, before anything is trained."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from kernelbench_tasks import catalog
from rl.checkpoints import FINAL, claim, replaced
from rl.config import load
from rl.errors import ConfigError
from rl.rows import Row, write_rows
from rl.train import all_held_out, chained, main

CONFIGS = Path(__file__).parents[2] / "rl" / "configs"
FRESH = {"fresh": {"model_type": "llama"}}


def config(folder: Path, **more: Any) -> str:
    known = {
        "stage": "sft",
        "name": "x",
        "output": str(folder / "out"),
        "data": str(folder / "pairs.jsonl"),
        "steps": 1,
    }
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump({**known, "held_out": ["rmsnorm"], "model": FRESH, **more}), "utf-8")
    return str(path)


def rows(folder: Path, source: str = "class Model: ...") -> None:
    row = Row(id="a", task="t", source=source, device="cpu", candidate="class ModelNew: ...")
    write_rows(folder / "pairs.jsonl", [row])


def status(caplog: pytest.LogCaptureFixture, *arguments: str) -> tuple[int, str]:
    with caplog.at_level(logging.ERROR):
        return main(arguments), caplog.text


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (
            {"stage": "stf"},
            "there is no stage 'stf'; stages are sft, selfsup, contrastive; did you mean `sft`?",
        ),
        ({"step": 3}, "`step` is no setting; did you mean `steps`?"),
        ({"held_out": ["nothing"]}, "no task is called 'nothing'"),
        ({"data": "/nowhere.jsonl"}, "/nowhere.jsonl cannot be read: No such file or directory"),
        ({"model": {"train": "full"}}, "has no model to begin with: give `model.path` or `model.fresh`"),
    ],
)
def test_a_wrong_config_is_one_sentence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, more: dict[str, Any], sentence: str
) -> None:
    rows(tmp_path)
    code, told = status(caplog, config(tmp_path, **more))
    assert code == 2
    assert sentence in told
    assert "Traceback" not in told
    assert not (tmp_path / "out").exists()


def test_data_with_an_evaluation_task_in_it_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows(tmp_path, catalog.load("rmsnorm").source.replace("Model(", "Model (") + "\n# other words\n")
    code, told = status(caplog, config(tmp_path))
    assert code == 2
    assert (
        "tasks that the model is evaluated on are in 1 of 1 row: a is 100% like rmsnorm; leave them out"
        in told
    )


def test_a_task_file_that_is_an_evaluation_task_by_another_name_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "mine.py").write_text(catalog.load("rmsnorm").source + "\n# mine\n", "utf-8")
    path = config(tmp_path, stage="selfsup", steps=4, tasks=[str(tmp_path / "mine.py")], model={"path": "x"})
    text = Path(path).read_text("utf-8")
    Path(path).write_text(
        "\n".join(line for line in text.split("\n") if not line.startswith("data:")), "utf-8"
    )
    code, told = status(caplog, path)
    assert code == 2
    assert "mine is 100% like rmsnorm" in told


def later(folder: Path, stage: str = "contrastive", **more: Any) -> str:
    """A config of a stage that judges, which begins with a model of a hub."""
    known = {"stage": stage, "name": "x", "output": str(folder / "out"), "steps": 4, "tasks": ["softmax"]}
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump({**known, "model": {"path": "some/model"}, **more}), "utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"model": {"path": "/nowhere/model"}}, "`model.path` /nowhere/model, which is not there"),
        (
            {"hacks": {"begin_with": "nowhere.journal"}},
            "`hacks.begin_with` nowhere.journal, which is not there",
        ),
        ({"exemplars": {"begin_with": "no.jsonl"}}, "`exemplars.begin_with` no.jsonl, which is not there"),
        ({"stage": "selfsup", "rounds": 3}, "has 4 `steps`, no multiple of its 3 `rounds`"),
        ({"judge": {"model": "m", "url": "http://x/v1", "api_key_variable": "NOT_SET"}}, "which is not set"),
        (
            {"fleet": {"url": "127.0.0.1:8000"}},
            "`fleet.url` is '127.0.0.1:8000'; it must be the address of a server",
        ),
        ({"fleet": {"url": "http://me:word@x"}}, "`fleet.url` has a password in it"),
        (
            {"generation": {"engine": "vllm-server", "url": "x"}},
            "`generation.url` is 'x'; it must be the address",
        ),
        ({"tasks": ["{folder}/torn.py"]}, "torn.py: is no Python"),
        ({"tasks": ["{folder}/marked.py"]}, "the task 'marked' holds text that means something in prompts"),
    ],
)
def test_what_would_end_a_later_stage_is_told_before_the_first(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, more: dict[str, Any], sentence: str
) -> None:
    (tmp_path / "torn.py").write_text("class Model(:\n", "utf-8")
    (tmp_path / "marked.py").write_text("class Model:\n    'ends with <|im_end|>'\n", "utf-8")
    more = {**more}
    if "tasks" in more:
        more["tasks"] = [one.format(folder=tmp_path) for one in more["tasks"]]
    assert status(caplog, later(tmp_path), "--check") == (0, "")
    code, told = status(caplog, later(tmp_path, **more), "--check")
    assert code == 2
    assert sentence in told
    assert "Traceback" not in told
    assert "word" not in told.replace("password", "")


def test_what_a_finished_stage_began_with_may_be_gone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = later(tmp_path, exemplars={"begin_with": "gone.jsonl"})
    assert status(caplog, path, "--check")[0] == 2
    with replaced(tmp_path / "out" / FINAL) as folder:
        (folder / "weights").write_text("finished")
    assert status(caplog, path, "--check")[0] == 0


def test_what_is_evaluated_in_one_stage_is_trained_on_in_none(tmp_path: Path) -> None:
    stages = chained(load(CONFIGS / "cpu.yaml", ["contrastive.held_out=[swiglu]"]))
    assert all_held_out(stages) == ("rmsnorm", "swiglu")


def test_clean_data_passes_the_look(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows(tmp_path)
    assert status(caplog, config(tmp_path), "--check") == (0, "")


def test_stages_of_a_list_take_from_those_before() -> None:
    sft, selfsup, contrastive = chained(load(CONFIGS / "cpu.yaml"))
    assert selfsup.model.path == str(sft.output / "checkpoint")
    assert contrastive.model.path == str(selfsup.output / "checkpoint")
    assert contrastive.exemplars.begin_with == selfsup.output / "successes.jsonl"  # type: ignore[union-attr]
    assert contrastive.fleet.verdicts == selfsup.output / "verdicts.journal"  # type: ignore[union-attr]


@pytest.mark.parametrize("setting", ["device=cuda", "shapes={visible: [{rows: 8}]}"])
def test_verdicts_are_not_handed_on_to_a_stage_that_judges_something_else(setting: str) -> None:
    contrastive = chained(load(CONFIGS / "cpu.yaml", [f"contrastive.fleet.{setting}"]))[2]
    assert contrastive.fleet.verdicts is None  # type: ignore[union-attr]


def test_settings_of_the_command_line_stand_above_the_files() -> None:
    settings = ["seed=7", "contrastive.steps=9", "contrastive.optimizer.learning_rate=0.5"]
    sft, selfsup, contrastive = load(CONFIGS / "cpu.yaml", settings)
    assert {stage.seed for stage in (sft, selfsup, contrastive)} == {7}
    assert (sft.steps, contrastive.steps, contrastive.optimizer.learning_rate) == (160, 9, 0.5)


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("steps", "must be key=value"),
        ("=3", "must be key=value"),
        ("steps=[", "is no YAML"),
        ("sft.steps.more=1", "`steps` is a value and has no settings"),
        ("sft=1", "no setting of it is named"),
        ("stepz=1", "`stepz` is no setting; did you mean `steps`?"),
        ("steps=0", "must be greater than or equal to 1"),
        ("a: b: c=1", "is no setting"),
    ],
)
def test_a_wrong_setting_of_the_command_line_is_one_sentence(setting: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as told:
        load(CONFIGS / "cpu_sft.yaml", [setting])
    assert sentence in str(told.value)
    assert "\n" not in str(told.value)


def test_help_teaches_and_a_file_can_be_run_as_such() -> None:
    command = [sys.executable, str(CONFIGS.parent / "train.py"), "--help"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    for word in ("--resume", "--set KEY=VALUE", "--check", "rl/configs/cpu.yaml", "Exit status"):
        assert word in ended.stdout


@pytest.mark.parametrize(("steps", "told"), [(2, False), (5, True)])
def test_more_steps_than_a_finished_run_took_are_not_passed_over_in_silence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, steps: int, told: bool
) -> None:
    rows(tmp_path)
    path = config(tmp_path, steps=2)
    (tmp_path / "out").mkdir()
    claim(load(Path(path))[0], resume=False)
    with replaced(tmp_path / "out" / FINAL) as folder:
        (folder / "weights").write_text("of two steps")
    (tmp_path / "out" / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n')
    with caplog.at_level(logging.INFO):
        assert main([config(tmp_path, steps=steps), "--resume", "auto"]) == 0
    assert "finished before" in caplog.text
    assert ("it ended after 2 steps, and 5 are set" in caplog.text) is told
