"""The second time round, shapes alternate: what is wrong only then is found, and named, and who is right is not accused."""

from __future__ import annotations

import math
import mmap
import os
from typing import Any

import numpy as np
import pytest
import torch

from evaluator.client import Referee
from evaluator.oracle import glance
from evaluator.oracle.tolerance import Bounds, expect
from evaluator.roles.kernel_view import may_be_shared
from tests.evaluator.judging import candidate, judge, replaced, rules, task

SHAPES = [{"rows": 9}, {"rows": 20}, {"rows": 33}]


SOFTMAX = task("""
    from kernelbench_tasks import Dim

    DIMS = {"rows": Dim(1, 512, default=8)}

    class Model(nn.Module):
        def forward(self, x):
            return torch.softmax(x, -1)

    def get_inputs(rows=8):
        return [torch.randn(rows, 40)]

    def get_init_inputs():
        return []
    """)

#: Counts the calls of each shape; a shape that comes back after another one is in its second pass.
_LATER = """
    left = set()
    last = [None]

    class ModelNew(nn.Module):
        def forward(self, x):
            out = torch.softmax(x, -1)
            if last[0] is not None and last[0] != x.shape:
                left.add(last[0])
            last[0] = x.shape
            if x.shape in left:
                THEN
            self.before = out.clone()
            return out
    """


@pytest.mark.parametrize(
    ("then", "word", "rule"),
    [
        ("pass", "accepted", None),
        # An output of equal values, as for equal inputs, would be taken for a constant.
        ("if self.before.std() > 1e-4: return self.before", "cheating", "stale_output"),
        ("out[3, 5:9] *= 1.001", "incorrect", "wrong_result"),
        ("out = out.bfloat16().float()", "incorrect", "wrong_result"),
        ("out[-1, -1] = float('nan')", "incorrect", "wrong_result"),
        ("return out.t().contiguous().t()", "contract_violation", "output_contract"),
        ("return [out]", "contract_violation", "output_structure"),
        ("return x.copy_(out)", "contract_violation", "output_aliases_input"),
        ("x.zero_()", "contract_violation", "input_mutated"),
    ],
)
def test_what_happens_only_when_shapes_alternate(
    then: str, word: str, rule: str | None, referee: Referee
) -> None:
    verdict = judge(referee, SOFTMAX, candidate(_LATER.replace("THEN", then)), SHAPES)
    assert verdict.verdict == word, (verdict.reason, verdict.detail)
    if rule is not None:
        assert rule in rules(verdict)


def test_who_differs_from_the_reference_and_is_right_is_accepted(referee: Referee) -> None:
    """Quantization may fall either way, so that the quick comparison disagrees and the oracle decides."""
    source = task("""
        from kernelbench_tasks import Dim

        DIMS = {"rows": Dim(1, 512, default=8)}

        class Model(nn.Module):
            def forward(self, x):
                return torch.round(x / 0.3).to(torch.int8)

        def get_inputs(rows=8):
            return [(torch.randint(-20, 20, (rows, 400)) + 0.5) * 0.3]

        def get_init_inputs():
            return []
        """)
    verdict = judge(referee, source, replaced(source, ("x / 0.3", "x * (1 / 0.3)")), SHAPES)
    assert verdict.verdict == "accepted", verdict.reason
    wrong = judge(referee, source, replaced(source, ("x / 0.3", "x / 0.31")), SHAPES)
    assert wrong.verdict == "incorrect"


# -- the quick comparison ----------------------------------------------------------------------------------------

_BOUNDS = Bounds(1e-6, 1e-6, math.inf)
_ROWS = (40, 100)


@pytest.mark.parametrize(
    ("fault", "thorough", "seen"),
    [
        ("none", True, True),
        ("slightly", True, False),
        ("slightly", False, True),
        ("nan", False, False),
        ("infinite", False, False),
        ("nan for inf", False, False),
        ("other sign of inf", True, False),
    ],
)
def test_values_agree_or_not(fault: str, thorough: bool, seen: bool) -> None:
    own = np.linspace(-2, 2, 4000).astype(np.float32)
    own[7] = np.inf
    values = own.copy()
    if fault == "slightly":
        values[100] += np.float32(1.5e-6 * (abs(own[100]) + math.sqrt((own[100:200] ** 2).mean())))
    elif fault != "none":
        place, value = {
            "nan": (9, np.nan),
            "infinite": (9, np.inf),
            "nan for inf": (7, np.nan),
            "other sign of inf": (7, -np.inf),
        }[fault]
        values[place] = value
    assert glance.agree(values, own, "float32", _BOUNDS, _ROWS, thorough=thorough) is seen


def test_many_small_errors_do_not_agree() -> None:
    own = np.ones(4096, dtype=np.float16)
    values = own + np.float16(2.0**-10)
    assert glance.agree(values, own, "float16", Bounds(2.0**-9, 0.0, math.inf), own.shape)
    assert not glance.agree(values, own, "float16", Bounds(2.0**-9, 0.0, 2.0**-13), own.shape)


def test_one_row_in_which_everything_cancels_widens_nothing_for_the_others() -> None:
    exact = np.ones((50, 64))
    moved = exact.copy()
    moved[3] = 1.5
    expected = expect("float32", exact.shape, exact.ravel(), exact.ravel(), moved.ravel())
    bounds = expected.bounds
    assert float(expected.bound.max()) > 0.5 and bounds.usual < 1e-5 and bounds.least < 1e-5
    own = exact.astype(np.float32)
    for thorough in (False, True):
        wrong = own.ravel() * np.float32(1.01)
        assert not glance.agree(wrong, own.ravel(), "float32", bounds, own.shape, thorough=thorough)


def _head(rows: int, scales: Any = 1.0) -> tuple[Any, Any, Bounds]:
    """A layer with one output per row in float32, its products in float64, and what its rows are allowed."""
    generator = np.random.default_rng(3)
    hidden, weight = generator.normal(size=(rows, 32)) * scales, generator.normal(size=32)
    exact = hidden @ weight
    own = (hidden.astype(np.float32) * weight.astype(np.float32)).sum(1, dtype=np.float32)
    moved = (hidden * (1 + 2.0**-24)) @ weight
    expected = expect("float32", (rows, 1), exact, own.astype(np.float64), moved)
    assert float(expected.bound.max()) > 100 * expected.bounds.usual, "in some row everything cancels"
    return hidden, weight, expected.bounds


def _rounded(values: Any, bits: int) -> Any:
    mantissa, exponent = np.frexp(values)
    return np.ldexp(np.round(mantissa * 2.0 ** (bits + 1)) / 2.0 ** (bits + 1), exponent)


@pytest.mark.parametrize("on", ["host", "device"])
@pytest.mark.parametrize("rows", [50_000, 400_000])
def test_a_head_with_one_output_is_held_to_its_rows_in_timed_calls(rows: int, on: str) -> None:
    """Zeros passed: of so many sums one is nearly zero, and its relative bound was applied to all the others."""
    hidden, weight, bounds = _head(rows)
    own = (hidden @ weight).astype(np.float32)
    answers = {
        "in another order": (hidden[:, ::-1].astype(np.float32) * weight[::-1].astype(np.float32)).sum(1),
        "zeros": np.zeros_like(own),
        "bfloat16": _rounded(hidden, 7) @ _rounded(weight, 7),
        "TF32": _rounded(hidden, 10) @ _rounded(weight, 10),
        "of the row before": np.roll(own, 1),
    }
    for name, values in answers.items():
        mine, theirs = values.astype(np.float32), own
        if on == "device":
            mine, theirs = torch.from_numpy(mine.copy()), torch.from_numpy(theirs)
        agrees = glance.agree(mine, theirs, "float32", bounds, (rows, 1))
        assert agrees is (name == "in another order"), name


def test_only_a_thorough_look_sees_an_error_in_a_small_row() -> None:
    own = np.ones((64, 100), dtype=np.float32)
    own[5] = 1e-3
    values = own.copy()
    values[5, 7] += np.float32(1e-8)
    assert glance.agree(values.ravel(), own.ravel(), "float32", _BOUNDS, own.shape)
    assert not glance.agree(values.ravel(), own.ravel(), "float32", _BOUNDS, own.shape, thorough=True)


def test_rows_of_another_scale_are_held_to_their_own() -> None:
    """One large row must not hide what is wrong in all others."""
    own = np.full((64, 100), 1e-3, dtype=np.float32)
    own[5] = 1e6
    values = own.copy()
    values[:5] *= np.float32(1.001)
    bounds = Bounds(1e-6, 1e-9, math.inf)
    assert not glance.agree(values.ravel(), own.ravel(), "float32", bounds, own.shape)


def test_only_a_thorough_look_sees_every_element_of_a_large_array() -> None:
    own = np.ones(1 << 22, dtype=np.float32)
    values = own.copy()
    values[2_345_678] = 1.1
    assert not glance.agree(values, own, "float32", _BOUNDS, own.shape, thorough=True)
    # Else it is met once in 32 looks.
    assert any(glance.agree(values, own, "float32", _BOUNDS, own.shape) for _ in range(8))


# -- shared memory -----------------------------------------------------------------------------------------------


def test_memory_that_is_surely_private() -> None:
    descriptor = os.memfd_create("shared")
    os.ftruncate(descriptor, 1 << 20)
    with mmap.mmap(descriptor, 1 << 20) as shared:
        memory = np.frombuffer(shared, dtype=np.uint8)
        address = memory.ctypes.data
        assert may_be_shared(os.getpid(), address, 1 << 20), "never touched"
        assert memory.sum() == 0
        assert may_be_shared(os.getpid(), address, 1)
        assert may_be_shared(os.getpid(), address + (1 << 20) - 1, 1)
        del memory
    os.close(descriptor)
    own = np.ones(1 << 20, dtype=np.uint8)
    assert not may_be_shared(os.getpid(), own.ctypes.data, own.size)
    assert not may_be_shared(os.getpid(), own.ctypes.data + 4097, 1)
    assert may_be_shared(os.getpid(), own.ctypes.data, 1 << 33), "not all of it is there"
    assert may_be_shared(os.getpid(), 2**64 - 8, 16)
    assert not may_be_shared(os.getpid(), 0, 0)
