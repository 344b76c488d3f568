"""What reproduce.py compares: right results of every kind pass its weak check, and wrong ones do not."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent.bundle import archive, evidence
from evaluator.sources import TaskSource
from tests.agent import programs

_SOURCE = Path(archive.__file__).parent / "templates" / "reproduce.py"

_TASK = """
import torch
import torch.nn as nn


class {name}(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16))

    def forward(self, x):
        return {result}


def get_inputs():
    return [{drawn}]
"""

_REAL, _COMPLEX = "torch.randn(32, 16)", "torch.randn(32, 16, dtype=torch.complex64)"
_PRODUCT = "(x * self.weight)"
_KINDS = {
    "masked": (f"{_PRODUCT}.tril().masked_fill(torch.ones(32, 16).triu(1).bool(), -torch.inf)", _REAL),
    "nan": (f"{_PRODUCT} / (x > 0).float() * (x > 0).float()", _REAL),
    "filled": (f"{_PRODUCT}.masked_fill(torch.ones(32, 16).triu(1).bool(), -1e9)", _REAL),
    "lowest": (f"{_PRODUCT}.masked_fill(torch.ones(32, 16).triu(1).bool(), torch.finfo(x.dtype).min)", _REAL),
    "boolean": (f"{_PRODUCT} > 0", _REAL),
    "float8": (f"{_PRODUCT}.to(torch.float8_e4m3fn)", _REAL),
    "complex": ("(x * self.weight + x.conj()).cumsum(1)", _COMPLEX),
    "values and places": (f"torch.sort({_PRODUCT}.softmax(1), 1)", _REAL),
}
#: The same in another order of rounding, and something wrong.
_HONEST = {
    "complex": "torch.stack([(x.conj() + self.weight * x)[:, :end].flip(1).sum(1) for end in range(1, 17)], 1)",
    "values and places": "tuple(torch.sort((lambda e: e / e.sum(1, keepdim=True))(torch.exp(self.weight * x)), 1))",
}
_WRONG = {
    "masked": f"{_PRODUCT}.tril()",
    "nan": f"{_PRODUCT}.nan_to_num() * (x > 0).float()",
    "filled": f"({_PRODUCT} * 1.01).masked_fill(torch.ones(32, 16).triu(1).bool(), -1e9)",
    "lowest": f"({_PRODUCT} * 1.01).masked_fill(torch.ones(32, 16).triu(1).bool(), torch.finfo(x.dtype).min)",
    "boolean": f"{_PRODUCT} < 0",
    "float8": f"(-{_PRODUCT}).to(torch.float8_e4m3fn)",
    "complex": "torch.complex((x * self.weight + x.conj()).cumsum(1).real, x.imag)",
    "values and places": f"tuple(one * 1.01 if one.is_floating_point() else one for one in torch.sort({_PRODUCT}.softmax(1), 1))",
}


def _checked(
    folder: Path, kind: str, result: str, precision: dict[str, Any] | None = None
) -> tuple[str, str]:
    """What reproduce.py says of a result: the error and what is wrong with it."""
    return _compared(folder, *_KINDS[kind], result, precision or {})


def _compared(
    folder: Path, expected: str, drawn: str, result: str, precision: dict[str, Any]
) -> tuple[str, str]:
    (folder / "task.py").write_text(_TASK.format(name="Model", result=expected, drawn=drawn))
    (folder / "optimized.py").write_text(_TASK.format(name="ModelNew", result=result, drawn=drawn))
    (folder / "reproduce.py").write_text(_SOURCE.read_text())
    requests = [{"do": "prepare", "number": 0, "dims": {}, "seed": 1}, {"do": "check", "number": 0}]
    words = "reproduce.py --worker optimized --device cpu --threads 1 --precision".split()
    given = "".join(json.dumps(one) + "\n" for one in requests)
    done = programs.run(folder, *words, json.dumps(precision), given=given)
    prepared, answer = (json.loads(line) for line in done.stdout.splitlines())
    assert "error" not in prepared, prepared
    found: tuple[str, str] = _module().judge_error(answer)
    return found


def _module() -> Any:
    spec = importlib.util.spec_from_file_location("reproduce_of_a_bundle", _SOURCE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("kind", _KINDS)
def test_results_of_every_kind_can_be_right(tmp_path: Path, kind: str) -> None:
    assert _checked(tmp_path, kind, _HONEST.get(kind, _KINDS[kind][0]))[1] == ""


@pytest.mark.parametrize("kind", _KINDS)
def test_results_of_every_kind_can_be_wrong(tmp_path: Path, kind: str) -> None:
    text, wrong = _checked(tmp_path, kind, _WRONG[kind])
    assert wrong and text != "failed"


def test_a_shape_that_fails_is_not_hidden_by_one_that_falls_back() -> None:
    """What cannot be checked ends with 2; a claim that does not hold ends with 1."""
    module, options = _module(), SimpleNamespace(tolerance=0.3)
    fallback, failed = "rows=2: the kernel does not run here", "rows=1: RuntimeError: illegal address"
    assert module.conclude([1.0], [1.0], [fallback], 1, options) == 2
    assert module.conclude([1.0], [1.0], [failed, fallback], 1, options) == 1
    assert module.conclude([1.0, 2.0], [1.0, 2.0], [], 0, options) == 0


_MATRIX = "x @ (self.weight * torch.ones(16, 16)).tril().T"
_ROUNDED = "x.to(torch.{0}).float() @ (self.weight * torch.ones(16, 16)).tril().to(torch.{0}).float().T"
_DRAWN = "torch.randn(64, 16)"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tier", "kept", "right"),
    [
        ("bf16", "bfloat16", True),
        ("bf16", "float8_e5m2", False),
        ("tf32", "float16", True),
        ("tf32", "bfloat16", False),
        ("default", "float16", False),
        ("strict", "float16", False),
    ],
)
def test_operands_of_products_may_lose_what_the_task_s_precision_allows(
    tmp_path: Path, tier: str, kept: str, right: bool
) -> None:
    told = evidence.precision(TaskSource("a task", f'PRECISION = "{tier}"\n'), "cpu")
    wrong = _compared(tmp_path, _MATRIX, _DRAWN, _ROUNDED.format(kept), told)[1]
    assert (wrong == "") is right, wrong


@pytest.mark.slow
def test_on_a_gpu_convolutions_alone_may_lose_bits_by_default(tmp_path: Path) -> None:
    """A convolution in channels-last ran in TF32 where the reference's did not, and the bundle's own check called it wrong."""
    told = evidence.precision(TaskSource("a task", ""), "cuda")
    convolution = "torch.nn.functional.conv1d({0}, {1}[None, None])"
    weight = "self.weight[:5]"
    kept = convolution.format("x.half().float()", f"{weight}.half().float()")
    less = convolution.format("x.bfloat16().float()", f"{weight}.bfloat16().float()")
    usual = convolution.format("x", weight)
    drawn = "torch.randn(64, 1, 32)"
    assert _compared(tmp_path, usual, drawn, kept, told)[1] == ""
    assert _compared(tmp_path, usual, drawn, less, told)[1]
    assert _compared(tmp_path, usual, drawn, kept, {**told, "mantissa_bits": None})[1]
    assert _compared(tmp_path, _MATRIX, _DRAWN, _ROUNDED.format("float16"), told)[1]
