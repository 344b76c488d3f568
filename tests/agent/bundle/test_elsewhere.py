"""The delivered file where it was not judged: on other machines it warns once and says what to do; and alone in a folder."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tests.agent.bundle.building import imported, inputs, optimized_text, right, warned


def test_a_gpu_s_bundle_without_a_gpu_says_so_once(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    module = imported(tmp_path, optimized_text(device="cuda"))
    models: list[Any] = []
    said = warned(lambda: models.extend([module.ModelNew(64), copy.deepcopy(module.ModelNew(64))]))
    assert len(said) == 1
    assert "no GPU that torch can use" in said[0]
    assert "kernelwright verify" in said[0]
    with torch.no_grad():
        assert not warned(lambda: right(module, models[0], *inputs()))
    assert not module.calls


def judged_with(folder: Path, version: str) -> ModuleType:
    text = optimized_text().replace("JUDGED_WITH = {}", f"JUDGED_WITH = {{'torch': {version!r}}}")
    assert version in text
    return imported(folder, text)


def test_another_torch_is_named_once(tmp_path: Path) -> None:
    module = judged_with(tmp_path, "1.13.1")
    said = warned(lambda: (module.ModelNew(64), module.ModelNew(64)))
    assert len(said) == 1
    assert "judged with torch 1.13.1" in said[0]
    assert not warned(lambda: judged_with(tmp_path, torch.__version__).ModelNew(64))


def test_another_gpu_and_other_threads_are_named_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = imported(tmp_path, optimized_text(device="cuda"))
    module.JUDGED_WITH["device_name"] = "NVIDIA H200"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(module, "_place", lambda: 0)

    def tell(name: str) -> None:
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda place: name)
        module._tell_where()

    said = warned(lambda: [tell(name) for name in ("NVIDIA H200", "NVIDIA L4", "NVIDIA L4")])
    assert len(said) == 1
    assert "NVIDIA H200, and this is NVIDIA L4" in said[0]


PROGRAM = """
import json, sys, torch
before = set(sys.modules)
import optimized
loaded = set(sys.modules) - before
with torch.no_grad():
    torch.manual_seed(0)
    model = optimized.ModelNew(64)
    x = torch.randn(4, 64)
    # In another order of summation a value near 0 is off by more than allclose's usual 1e-8.
    same = torch.allclose(model(x, x), optimized.Model.forward(model, x, x), atol=1e-5)
print(json.dumps({"loaded": sorted(loaded), "same": same, "member": len(optimized.calls)}))
"""


def test_alone_in_a_folder_it_works_and_loads_next_to_nothing_beside_torch(tmp_path: Path) -> None:
    """What takes long to import would show among the modules: torch's compiler alone takes seconds."""
    (tmp_path / "optimized.py").write_text(optimized_text())
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-s", "-c", PROGRAM],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    found = json.loads(done.stdout)
    assert found["same"]
    assert found["member"] > 0
    assert [name for name in found["loaded"] if name.startswith("torch._")] == []
    assert len(found["loaded"]) <= 3, found["loaded"]
