"""What a cluster is started with: each file is read by the library that will read it there, where that library is installed."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "rl" / "configs" / "cluster"
ACCELERATE = sorted(FOLDER.glob("accelerate_*.yaml"))
ZERO = sorted(FOLDER.glob("zero3_*.json"))
SCRIPTS = sorted(FOLDER.glob("*.slurm"))


def test_there_is_something_of_each() -> None:
    assert len(ACCELERATE) >= 4
    assert len(ZERO) == 2
    assert len(SCRIPTS) == 2


@pytest.mark.parametrize("path", ACCELERATE, ids=lambda path: path.stem)
def test_accelerate_takes_the_config(path: Path) -> None:
    config_args = pytest.importorskip("accelerate.commands.config.config_args")
    config = config_args.load_config_from_file(str(path))
    if path.stem == "accelerate_fsdp":
        from accelerate.utils import FullyShardedDataParallelPlugin

        known = {f"fsdp_{name}" for name in FullyShardedDataParallelPlugin.__dataclass_fields__}
        # names of the config that the plugin takes under another one
        known |= {"fsdp_version", "fsdp_offload_params", "fsdp_cpu_ram_efficient_loading"}
        assert set(config.fsdp_config) <= known
        assert config.fsdp_config["fsdp_offload_params"] is True
    if "zero3" in path.stem:
        named = ROOT / config.deepspeed_config["deepspeed_config_file"]
        assert named in ZERO
        accelerate_deepspeed = pytest.importorskip("accelerate.utils.deepspeed")
        assert accelerate_deepspeed.HfDeepSpeedConfig(str(named)).is_zero3()


def without_auto(config: dict[str, Any]) -> dict[str, Any]:
    """What stands in the file; "auto" is filled in from the trainer's arguments."""
    return {
        name: without_auto(value) if isinstance(value, dict) else value
        for name, value in config.items()
        if value != "auto"
    }


@pytest.mark.parametrize("path", ZERO, ids=lambda path: path.stem)
def test_deepspeed_takes_the_config(path: Path) -> None:
    config = json.loads(path.read_text())
    device = path.stem.removeprefix("zero3_")
    zero = config["zero_optimization"]
    assert zero["stage"] == 3
    assert {zero["offload_param"]["device"], zero["offload_optimizer"]["device"]} == {device}
    # else a checkpoint would hold names without weights
    assert zero["stage3_gather_16bit_weights_on_model_save"] is True
    deepspeed = pytest.importorskip("deepspeed.runtime.zero.config")
    deepspeed.DeepSpeedZeroConfig(**without_auto(zero))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_scripts_are_shell_and_say_what_they_want(path: Path) -> None:
    subprocess.run(["bash", "-n", str(path)], check=True)
    asked = subprocess.run(["bash", str(path)], capture_output=True, text=True, cwd=ROOT)
    assert asked.returncode != 0
    assert f"usage: sbatch {path.name}" in asked.stderr
    assert os.access(path, os.X_OK)
    text = path.read_text()
    for name in ("HF_HUB_DISABLE_TELEMETRY=1", "VLLM_NO_USAGE_STATS=1"):
        assert name in text


def test_the_training_script_starts_what_it_says_on_every_machine(tmp_path: Path) -> None:
    """With a made-up Slurm of two machines: `srun` runs its command once for each."""
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    programs = {
        "scontrol": 'printf "node-a\\nnode-b\\n"',
        "srun": 'shift; for rank in 0 1; do SLURM_PROCID=$rank "$@"; done',
    }
    for name, body in programs.items():
        (bin_folder / name).write_text(f"#!/bin/bash\n{body}\n")
        (bin_folder / name).chmod(0o755)
    launcher = tmp_path / ".venv" / "bin" / "accelerate"
    launcher.parent.mkdir(parents=True)
    launcher.write_text('#!/bin/bash\necho "$@"\n')
    launcher.chmod(0o755)
    environment = {
        "PATH": f"{bin_folder}:{os.environ['PATH']}",
        "SLURM_SUBMIT_DIR": str(tmp_path),
        "SLURM_JOB_NODELIST": "node-[a-b]",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_GPUS_ON_NODE": "4",
        "SLURM_JOB_ID": "41234",
    }
    said = subprocess.run(
        ["bash", str(FOLDER / "train.slurm"), "my config.yaml"],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    ).stdout.splitlines()
    assert len(said) == 2
    for rank, line in enumerate(said):
        assert f"--machine_rank {rank} " in line
        assert "--num_machines 2 --num_processes 8 " in line
        assert "--main_process_ip node-a --main_process_port 21234 " in line
        assert line.endswith("-m rl.train my config.yaml --resume auto")
    config_file = shlex.split(said[0])[2]
    assert ROOT / config_file in ACCELERATE


SETS = yaml.safe_load((FOLDER / "versions.yaml").read_text())["sets"]
#: What vLLM's releases pin (their metadata), and what TRL takes of it.
TORCH_OF_VLLM = {"0.26.0": "2.11.0", "0.31.0": "2.13.0"}


@pytest.mark.parametrize("one", SETS, ids=lambda one: one["name"])
def test_version_sets_fit_what_the_packages_ask_for(one: dict[str, Any]) -> None:
    packages = {name: Version(str(version)) for name, version in one["packages"].items()}
    if "vllm" in packages:
        assert Version("0.22.0") <= packages["vllm"] <= Version("0.31.0")
        assert packages["torch"] == Version(TORCH_OF_VLLM[str(packages["vllm"])])
    assert not set(one["without"]) & set(packages)
    wanted = re.search(r"^rl = \[(.*?)^\]", (ROOT / "pyproject.toml").read_text(), re.DOTALL | re.MULTILINE)
    assert wanted is not None
    for line in re.findall(r'"([^"]+)"', wanted[1]):
        requirement = Requirement(line)
        if requirement.name in packages:
            assert packages[requirement.name] in requirement.specifier, line


def test_the_documentation_names_every_file_of_the_folder() -> None:
    text = (ROOT / "docs" / "training.md").read_text()
    for path in FOLDER.iterdir():
        assert f"`{path.name}`" in text, path.name
