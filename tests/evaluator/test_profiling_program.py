"""A whole program under the profile: slow data, a wait and a heavy layer are told apart, and the program runs as it would."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from evaluator.errors import EvaluatorError
from evaluator.profiling.whole import profile_program, ranked

PROGRAM = """
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Slow(Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        time.sleep(0.02)
        return torch.randn(64), torch.tensor(index % 3)


class Heavy(nn.Module):
    def forward(self, x):
        time.sleep(0.08)
        return x


net = nn.Sequential(nn.Linear(64, 32), Heavy(), nn.Linear(32, 3))
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for x, y in DataLoader(Slow(), batch_size=4):
    loss = nn.functional.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if loss.item() > 1e9:
        break
Path(sys.argv[1]).write_text("|".join([__name__, *sys.argv[2:]]))
sys.exit(3)
"""


def test_the_parts_of_a_program_are_told_apart(tmp_path: Path) -> None:
    script, ran = tmp_path / "train.py", tmp_path / "ran"
    script.write_text(PROGRAM)
    found = profile_program([sys.executable, str(script), str(ran), "--rate", "3"])
    assert ran.read_text() == "__main__|--rate|3"
    assert found["exit"] == 3
    parts = {part["name"]: part["seconds"] for part in found["parts"]}
    # 16 samples of 20 ms, 4 calls of 80 ms.
    assert parts["loading data"] >= 0.32
    assert parts["forward"] >= 0.32
    assert {"backward", "the optimizer"} <= set(parts)
    assert found["modules"][0]["name"] == "Sequential.1"
    assert 0.3 <= found["modules"][0]["self_s"] <= found["wall_s"]
    (wait,) = [row for row in found["waits"] if row["what"] == "item"]
    line = next(number for number, text in enumerate(PROGRAM.splitlines(), 1) if "loss.item()" in text)
    assert (wait["where"], wait["calls"]) == (f"{script}:{line}", 4)
    assert not any("evaluator" in row["where"] for row in found["waits"])


def test_what_a_part_can_save_is_bounded_by_its_share() -> None:
    layer = {"name": "Net.a", "type": "Linear", "calls": 1, "total_s": 5.0, "self_s": 5.0}
    plain = {
        "wall_s": 11.0, "watching_s": 1.0, "startup_s": 2.0, "device": "cpu", "roots": ["Net"], "modules": [layer],
        "spans": [],
    }  # fmt: skip
    (row,) = ranked(plain)["modules"]
    assert (row["share"], row["at_most"]) == (0.5, 2.0)


@pytest.mark.parametrize("argv", [["python"], ["bash", "train.sh"], ["python", "-c", "1"]])
def test_what_is_no_program_is_refused(argv: list[str]) -> None:
    with pytest.raises(EvaluatorError, match=r"python script\.py"):
        profile_program(argv)


def test_a_python_without_torch_is_named(tmp_path: Path) -> None:
    with pytest.raises(EvaluatorError, match="does not run"):
        profile_program([str(tmp_path / "python"), "train.py"])
    bare = tmp_path / "python3"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E "$@"\n')
    bare.chmod(0o755)
    with pytest.raises(EvaluatorError, match=r"python3 has no torch"):
        profile_program([str(bare), "train.py"])
