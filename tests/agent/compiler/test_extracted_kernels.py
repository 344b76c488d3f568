"""From the reference to running kernels: capture, assemble, compile, and compare with float64 at many sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agent.compiler.capture import read_capture
from agent.compiler.standalone import standalone_source
from tests.agent.compiler.extraction import DIMS, capture_text, run_program, task_text

# Prints for each set of sizes whether the kernels ran and how far eager and candidate are from float64.
COMPARE = """
import copy, inspect, json, sys
import torch
torch.manual_seed(0)
import reference, candidate

def take(function, dims):
    return {name: dims[name] for name in inspect.signature(function).parameters if name in dims}

def distance(result, truth):
    return float((result.double() - truth).abs().max())

eager_calls = []
plain = candidate.Model.forward
def counted(self, *arguments):
    eager_calls.append(1)
    return plain(self, *arguments)
candidate.Model.forward = counted

rows, device = [], sys.argv[2]
for dims in json.loads(sys.argv[1]):
    init = reference.get_init_inputs(**take(reference.get_init_inputs, dims))
    model, new = reference.Model(*init).eval().to(device), candidate.ModelNew(*init).eval().to(device)
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.copy_(torch.randn_like(tensor) * 0.3)
    new.load_state_dict(model.state_dict(), strict=True)
    inputs = [value.to(device) for value in reference.get_inputs(**take(reference.get_inputs, dims))]
    with torch.no_grad():
        result, expected = new(*inputs), model(*inputs)
        again = new.forward_checked(*inputs)
        truth = copy.deepcopy(model).double()(*[value.double() for value in inputs])
    by_kernels = not eager_calls
    rows.append({
        "dims": dims, "by_kernels": by_kernels, "same": torch.equal(result, again),
        "form": [str(result.dtype), list(result.shape), list(result.stride())]
                == [str(expected.dtype), list(expected.shape), list(expected.stride())],
        "fresh": result.data_ptr() not in [again.data_ptr(), *(value.data_ptr() for value in inputs)],
        "error": distance(result, truth), "eager_error": distance(expected, truth), "scale": float(truth.abs().max()),
    })
    eager_calls.clear()

# Outside their domain the reference computes: gradients, another dtype, another layout, a sliced input.
outside = {}
loss = new(*inputs).sum()
outside["gradients"] = bool(eager_calls) and (loss.requires_grad or not list(new.parameters()))
with torch.no_grad():
    for name, change in {
        "dtype": lambda value: value.double(),
        "layout": lambda value: value.repeat_interleave(2, dim=-1)[..., ::2],
    }.items():
        eager_calls.clear()
        other = copy.deepcopy(new).double() if name == "dtype" else new
        truth = (copy.deepcopy(model).double() if name == "dtype" else model)(*map(change, inputs))
        close = torch.allclose(other(*map(change, inputs)), truth)
        outside[name] = bool(eager_calls) and close
    # Parameters whose data somebody replaced: neither identity nor version changes, so no dispatcher can see it.
    swapped = copy.deepcopy(new)
    for parameter in swapped.parameters():
        parameter.data = torch.stack([parameter.data, torch.full_like(parameter.data, 7)], -1)[..., 0]
    eager_calls.clear()
    close = torch.allclose(swapped.forward_checked(*inputs), model(*inputs), rtol=1e-4, atol=1e-5)
    outside["swapped"] = bool(eager_calls) and close
print(json.dumps({"rows": rows, "outside": outside}))
"""

SIZES: dict[str, list[dict[str, Any]]] = {
    "layernorm_relu_add": [
        {"rows": 512, "cols": 1024},
        {"rows": 1, "cols": 8},
        {"rows": 37, "cols": 1021},
        {"rows": 5, "cols": 4097},
        {"rows": 100, "cols": 33},
    ],
    "matmul_bias_relu": [
        {"rows": 256, "inner": 256, "outer": 512},
        {"rows": 1, "inner": 8, "outer": 8},
        {"rows": 31, "inner": 127, "outer": 65},
    ],
}


def compare(folder: Path, name: str, source: str, device: str) -> dict[str, Any]:
    """What COMPARE says of a candidate for one of this folder's tasks."""
    (folder / "reference.py").write_text(task_text(name))
    (folder / "candidate.py").write_text(source)
    return run_program(folder, COMPARE, json.dumps(SIZES[name]), device)


def source_of(folder: Path, name: str, device: str) -> str:
    """The candidate that a fresh capture of a task gives."""
    written = capture_text(folder, task_text(name), DIMS[name], device)
    return standalone_source(read_capture(written), task_text(name), name, device)


def check(answer: dict[str, Any]) -> None:
    for row in answer["rows"]:
        assert row["by_kernels"], f"the reference ran in place of the kernels at {row['dims']}"
        assert row["form"] and row["fresh"] and row["same"], row
        assert row["error"] <= 4 * row["eager_error"] + 1e-6 * row["scale"], row
    assert answer["outside"] == {"gradients": True, "dtype": True, "layout": True, "swapped": True}


@pytest.mark.slow
@pytest.mark.parametrize("name", list(SIZES))
def test_extracted_kernels_compute_the_task(name: str, tmp_path: Path) -> None:
    source = source_of(tmp_path / "capture", name, "cpu")
    check(compare(tmp_path, name, source, "cpu"))
    if name == "matmul_bias_relu":  # jobs resume by the hash of the source
        assert source_of(tmp_path / "again", name, "cpu") == source


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("name", list(SIZES))
def test_extracted_triton_kernels_compute_the_task(name: str, tmp_path: Path) -> None:
    source = source_of(tmp_path / "capture", name, "cuda")
    assert "@triton.jit" in source
    check(compare(tmp_path, name, source, "cuda"))


HEADER = "import torch\nimport torch.nn as nn\n\n\nclass Model(nn.Module):\n    def forward(self, x):\n"
FOOTER = "\n\ndef get_inputs(rows=40):\n    return [torch.randn(rows, 10)]\n\n\ndef get_init_inputs():\n    return []\n"
ROWS = {"rows": {"min": 1, "max": 64, "multiple_of": 1, "default": 40}}


@pytest.mark.parametrize(
    ("forward", "reason"),
    [
        ("        return torch.dropout(x, 0.5, True)\n", "random numbers"),
        ("        return torch.relu(x), x.view(-1)\n", "shares memory"),
    ],
)
def test_says_why_a_module_cannot_be_extracted(forward: str, reason: str, tmp_path: Path) -> None:
    capture = read_capture(capture_text(tmp_path / "capture", HEADER + forward + FOOTER, ROWS))
    assert capture.variants == ()
    assert reason in capture.reason


def test_a_branch_on_a_size_limits_the_domain(tmp_path: Path) -> None:
    forward = (
        "        if x.shape[0] > 16:\n            return torch.sin(x) * 2\n        return torch.cos(x)\n"
    )
    capture = read_capture(capture_text(tmp_path / "capture", HEADER + forward + FOOTER, ROWS))
    assert [len(variant.guards) for variant in capture.variants] == [1, 1]
    source = standalone_source(capture, HEADER + forward + FOOTER, "branch", "cpu")
    assert "rows > 16" in source
    assert "rows <= 16" in source
