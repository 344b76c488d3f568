"""Precision tiers: what each lets a GPU do, on which operands, and what it therefore allows a candidate."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from evaluator.client import Referee
from evaluator.precision import TIERS, declared, rounds_operands, with_precision
from evaluator.referee.judging.core import RefereeCore
from evaluator.referee.session import expectation
from evaluator.request import Request
from evaluator.roles import exact, variants
from evaluator.roles.open_shape import Shape
from evaluator.sources import CandidateSource, TaskSource
from evaluator.verdict import Verdict
from tests.evaluator.judging import candidate, judge, rules, task

# -- a tier's name -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "tier"),
    [
        ("", "default"),
        ("PRECISION = 'bf16'\n", "bf16"),
        ('PRECISION: str = "tf32"\n', "tf32"),
        ('PRECISION = "tf32"\n\nPRECISION = "strict"\n', "strict"),
        ('def f():\n    PRECISION = "fp8"\n', "default"),
    ],
)
def test_a_file_says_its_tier(text: str, tier: str) -> None:
    assert declared(text) == tier


def test_a_request_overrides_the_file_and_changes_nothing_that_the_file_says_already() -> None:
    written = TaskSource("a", 'x = 1\nPRECISION = "bf16"')
    asked = with_precision(written, "strict")
    assert declared(asked.source) == "strict"
    scope: dict[str, Any] = {}
    exec(asked.source, scope)
    assert scope["PRECISION"] == "strict"
    assert with_precision(written, "bf16") is written and with_precision(written, None) is written
    with pytest.raises(ValueError, match=r"fp32.* is not a precision; use one of default, strict"):
        with_precision(written, "fp32")


# -- what a process may do ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tier", "flags"),
    [("default", (False, True)), ("strict", (False, False)), ("tf32", (True, True)), ("bf16", (True, True))],
)
def test_a_tier_sets_the_flags_that_its_user_has(tier: str, flags: tuple[bool, bool]) -> None:
    def now() -> tuple[bool, bool]:
        return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32

    before = now()
    try:
        variants.use_tier(tier)
        assert now() == flags
        with variants.full_precision():
            assert now() == (False, False)
        assert now() == flags
    finally:
        variants._allow_tf32(*before)


_BUILD = """
import json, sys, torch
from evaluator.roles.module_host import ModuleHost
for tier in sys.argv[1:]:
    host = ModuleHost({"gpu": True, "role": "candidate", "chain_library": None, "may_compile": False, "threads": 1, "headers_path": ""})
    host.module = torch
    # As a candidate's file may do at its import.
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = False
    host.build({"shape": 1, "init": [], "precision": tier}, [])
    print(json.dumps([torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32]))
"""


def test_a_candidates_process_starts_with_the_flags_of_its_tier(tmp_path: Path) -> None:
    tiers = ["default", "strict"]
    ran = subprocess.run(
        [sys.executable, "-c", _BUILD, *tiers],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    found = [json.loads(line) for line in ran.stdout.splitlines()]
    assert found == [[False, TIERS[tier].cudnn_tf32] for tier in tiers]


# -- which operands are rounded ------------------------------------------------------------------------------------


class _Both(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(64, 16)
        self.conv = torch.nn.Conv1d(3, 5, 7)

    def forward(self, x: torch.Tensor) -> Any:
        q = x[None]
        return (
            self.linear(x[0]),
            torch.bmm(x, x.mT),
            torch.nn.functional.scaled_dot_product_attention(q, q, q),
            self.conv(x),
        )


def _errors(tier: str) -> list[float]:
    """How far each of the outputs moves from the exact one in a tier, relative to its size."""
    torch.manual_seed(0)
    model, x = _Both(), torch.randn(2, 3, 64)
    results = []
    for one in ("strict", tier):
        shape = Shape()
        shape.model = model
        results.append(exact.outputs(shape, [x], None, one))
    return [float((mine - right).norm() / right.norm()) for right, mine in zip(*results, strict=True)]


def test_the_default_tier_rounds_what_is_convolved_and_no_matrix() -> None:
    *matrices, convolution = _errors("default")
    assert matrices == [0.0, 0.0, 0.0]
    assert 1e-5 < convolution < 1e-3
    assert all(1e-5 < error < 1e-3 for error in _errors("tf32"))
    assert _errors("strict") == [0.0] * 4


def test_weights_of_a_recurrent_layer_count_as_operands_of_what_cudnn_computes() -> None:
    class Schema:
        name = "aten::_cudnn_rnn"

    seen: list[Any] = []

    class Function:
        _schema = Schema

        def __call__(self, *args: Any) -> None:
            seen.extend(args)

    third = torch.full((4, 4), 1 / 3, dtype=torch.float64)
    mode = exact.Arithmetic(widen=False, tier="default")
    mode.__torch_dispatch__(Function(), (), (third, [third, third], 4, None, third, third))
    data, weights, stride, piece, hidden, cell = seen
    assert [float((one - third).abs().max()) > 0 for one in (data, *weights, hidden)] == [True] * 4
    assert (stride, piece) == (4, None) and cell is third


# -- what a candidate may ----------------------------------------------------------------------------------------------

_TASK = """
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = LAYER

        def forward(self, x):
            return CALL(x, self.layer.weight, self.layer.bias)

    def get_inputs():
        return [torch.randn(8, 64, 96)]

    def get_init_inputs():
        return []
    """
_TF32 = "((t.contiguous().view(torch.int32) + 4096) & -8192).view(torch.float32)"
_LINEAR, _CONV = ("nn.Linear(96, 48)", "F.linear"), ("nn.Conv1d(64, 32, 5)", "F.conv1d")


def _written(layer: tuple[str, str]) -> tuple[TaskSource, str]:
    text = _TASK.replace("LAYER", layer[0]).replace("CALL", layer[1])
    return task(text), text.replace("class Model(", "class ModelNew(")


def _with_rounded_operands(layer: tuple[str, str]) -> tuple[TaskSource, CandidateSource]:
    source, text = _written(layer)
    call = f"{layer[1]}(low(x), low(self.layer.weight), self.layer.bias)"
    text = text.replace(f"{layer[1]}(x, self.layer.weight, self.layer.bias)", call)
    return source, candidate(f"    def low(t):\n        return {_TF32}\n{text}")


def _judged(core: RefereeCore, source: TaskSource, low: CandidateSource) -> Verdict:
    core._drop(source)
    request = Request(source, low, "screen", ("adversarial",), {"adversarial": [{}]})
    return core.evaluate(request, lambda *_: None)


def test_on_a_gpu_the_default_tier_allows_tf32_where_things_are_convolved(
    core: RefereeCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, low = _with_rounded_operands(_CONV)
    assert _judged(core, source, low).verdict == "incorrect", "a CPU has no TF32"
    monkeypatch.setattr(expectation, "rounds_operands", lambda tier, *, gpu: rounds_operands(tier, gpu=True))
    convolved = _judged(core, source, low)
    assert (convolved.verdict, convolved.precision) == ("accepted", "default"), convolved.reason
    assert "precision_change" in rules(convolved)
    strict = _judged(core, with_precision(source, "strict"), low)
    assert (strict.verdict, strict.precision) == ("incorrect", "strict")
    multiplied = _judged(core, *_with_rounded_operands(_LINEAR))
    assert multiplied.verdict == "incorrect" and "precision_change" not in rules(multiplied)


_SPLIT = """
    def tf32(t):
        return ((t.contiguous().view(torch.int32) + 4096) & -8192).view(torch.float32)

    def half(t):
        return t.half().float()

    def parts(t, scale):
        first = ROUND(t)
        return first, ROUND((t - first) * scale) / scale
"""


@pytest.mark.parametrize(
    ("tier", "rounding", "scale"),
    [
        pytest.param("strict", "half", 2048.0, marks=pytest.mark.slow),
        ("default", "tf32", 1.0),
        pytest.param("tf32", "half", 2048.0, marks=pytest.mark.slow),
    ],
)
def test_a_product_put_together_from_three_is_right_in_every_tier(
    referee: Referee, tier: str, rounding: str, scale: float
) -> None:
    """No rule speaks of methods: three products in TF32 or float16 keep what one of them drops."""
    source, text = _written(_LINEAR)
    product = (
        f"(lambda x, w: x[0] @ w[0].T + (x[0] @ w[1].T + x[1] @ w[0].T))"
        f"(parts(x, {scale}), parts(self.layer.weight, {scale})) + self.layer.bias"
    )
    text = text.replace("F.linear(x, self.layer.weight, self.layer.bias)", product)
    assert "parts(x" in text
    verdict = judge(
        referee, with_precision(source, tier), candidate(_SPLIT.replace("ROUND", rounding) + text)
    )
    assert verdict.verdict == "accepted", verdict.reason
    assert "precision_change" not in rules(verdict)


def test_a_tier_that_there_is_not_is_refused_with_those_there_are(referee: Referee) -> None:
    source = task('PRECISION = "fp32"\n' + _written(_LINEAR)[0].source)
    verdict = judge(referee, source, candidate(_written(_LINEAR)[1]))
    assert verdict.verdict == "task_rejected"
    assert "'fp32' is not a precision; use one of default, strict, tf32" in verdict.reason
