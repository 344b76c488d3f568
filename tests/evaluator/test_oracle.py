"""The tolerance lets honest rounding pass and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from evaluator.oracle.compare import compare, contract
from evaluator.oracle.numbers import from_float64, to_float64
from evaluator.oracle.tolerance import Expected, expect
from evaluator.roles.frames import TensorMeta


def _softmax(x: np.ndarray, dtype: type) -> np.ndarray:
    x = x.astype(dtype)
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True, dtype=dtype)


@pytest.fixture
def softmax() -> tuple[np.ndarray, Expected]:
    x = np.random.default_rng(3).normal(size=(64, 200)).astype(np.float32)
    exact, own = _softmax(x, np.float64), _softmax(x, np.float32)
    moved = _softmax(x * (1 + 2.0**-23), np.float64)
    return x, expect(
        "float32", x.shape, exact.reshape(-1), own.astype(np.float64).reshape(-1), moved.reshape(-1)
    )


def test_another_order_of_summation_passes(softmax: tuple[np.ndarray, Expected]) -> None:
    x, expected = softmax
    reordered = _softmax(x[:, ::-1], np.float32)[:, ::-1]
    assert compare(reordered.reshape(-1), expected).ok


@pytest.mark.parametrize("fault", ["bfloat16", "one row", "one element", "nan", "zeros", "scaled"])
def test_faults_do_not_pass(softmax: tuple[np.ndarray, Expected], fault: str) -> None:
    x, expected = softmax
    values = _softmax(x, np.float32).reshape(-1)
    if fault == "bfloat16":
        values = to_float64(from_float64(values.astype(np.float64), "bfloat16"), "bfloat16").astype(
            np.float32
        )
    elif fault == "one row":
        values[200:400] *= np.float32(1.001)
    elif fault == "one element":
        values[7] += np.float32(1e-5)
    elif fault == "nan":
        values[5] = np.nan
    elif fault == "zeros":
        values[:] = 0
    else:
        values *= np.float32(1 + 1e-4)
    comparison = compare(values, expected)
    assert not comparison.ok
    assert comparison.words


def test_nan_and_infinity_must_stand_where_the_reference_has_them() -> None:
    exact = np.array([1.0, np.nan, np.inf, -np.inf])
    expected = expect("float32", (4,), exact, exact, None)
    assert compare(exact.astype(np.float32), expected).ok
    for wrong in ([1, 2, np.inf, -np.inf], [1, np.nan, -np.inf, -np.inf], [np.nan, np.nan, np.inf, -np.inf]):
        assert not compare(np.array(wrong, dtype=np.float32), expected).ok


def test_integers_are_exact() -> None:
    values = np.arange(10)
    expected = expect("int64", (10,), values, values, None)
    assert compare(values, expected).ok
    assert not compare(values + (values == 4), expected).ok


def test_contract_names_what_differs() -> None:
    reference = TensorMeta("float32", (4, 5), (5, 1))
    assert contract(reference, reference) == ""
    assert "dtype" in contract(TensorMeta("float16", (4, 5), (5, 1)), reference)
    assert "shape" in contract(TensorMeta("float32", (5, 4), (4, 1)), reference)
    assert "strides" in contract(TensorMeta("float32", (4, 5), (1, 4)), reference)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_numbers_of_every_dtype_round_as_torch_rounds(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    values = np.random.default_rng(1).normal(0, 3, 4000)
    carried = from_float64(values, dtype)
    theirs = torch.from_numpy(values.astype(np.float32)).to(getattr(torch, dtype)).to(torch.float64).numpy()
    ours = to_float64(carried, dtype)
    # Through float32 first there is a rare double rounding; never more than the dtype's own spacing.
    assert np.mean(ours == theirs) > 0.999
    assert np.allclose(ours, theirs, rtol=0.25, atol=0.02)


def test_where_everything_cancels_errors_are_relative_to_the_usual_size_too() -> None:
    exact = np.full(64, 1e-6)
    got = (exact + 5e-7).astype(np.float32)
    alone = expect("float32", (8, 8), exact, exact, None)
    beside = expect("float32", (8, 8), exact, exact, None, usual=1.0)
    assert not compare(got, alone).ok
    assert compare(got, beside).ok
    assert not compare((exact + 1e-4).astype(np.float32), beside).ok


def test_a_long_sum_taken_in_order_is_right_and_a_lower_precision_is_not() -> None:
    terms = np.full((4, 2048), 0.1, dtype=np.float32)
    in_order = np.add.accumulate(terms, axis=1, dtype=np.float32)[:, -1]
    exact = terms.astype(np.float64).sum(axis=1)
    own = terms.sum(axis=1).astype(np.float64)
    assert not compare(in_order, expect("float32", (4,), exact, own, None)).ok
    expected = expect("float32", (4,), exact, own, None, terms=2048)
    assert compare(in_order, expected).ok
    assert not compare(terms.astype(np.float16).sum(axis=1, dtype=np.float32), expected).ok


def test_the_mean_of_equal_terms_may_be_off_as_far_as_its_rounding_goes_and_no_further() -> None:
    """LayerNorm of constant rows, with a mean that was summed over sixteen lanes one term after the other."""
    cols, eps = 1024, 1e-5
    x = np.repeat(np.random.default_rng(1).normal(3.0, 1.0, (64, 1)).astype(np.float32), cols, axis=1)

    def layer_norm(values: np.ndarray, mean: np.ndarray) -> np.ndarray:
        deviation = values - mean
        return deviation / np.sqrt((deviation.astype(np.float64) ** 2).mean(1, keepdims=True) + eps)

    def in_lanes(values: np.ndarray) -> np.ndarray:
        lanes = np.zeros((values.shape[0], 16), dtype=values.dtype)
        for start in range(0, cols, 16):
            lanes = lanes + values[:, start : start + 16]
        return (lanes.sum(1, keepdims=True) / values.dtype.type(cols)).astype(values.dtype)

    wide = x.astype(np.float64)
    exact = layer_norm(wide, wide.mean(1, keepdims=True))
    signs = np.random.default_rng(2).integers(0, 2, x.shape) * 2 - 1
    near = wide * (1 + np.finfo(np.float32).eps * signs)
    moved = layer_norm(near, near.mean(1, keepdims=True))
    own = layer_norm(x, x[:, :1]).astype(np.float64)
    found = layer_norm(x, in_lanes(x)).astype(np.float64)
    given = ("float32", x.shape, exact.ravel(), own.ravel(), moved.ravel(), cols, 1.0)
    assert not compare(found.ravel(), expect(*given)).ok
    assert compare(found.ravel(), expect(*given, equal_terms=True)).ok
    half = layer_norm(x, x[:, :1] * np.float32(1 + 2**-11)).astype(np.float64)
    assert not compare(half.ravel(), expect(*given, equal_terms=True)).ok


@pytest.mark.parametrize(("width", "usual"), [(32, 0.5), (256, 0.5), (256, 0.0)])
def test_a_row_that_is_mostly_cut_off_is_allowed_what_others_lose(width: int, usual: float) -> None:
    generator = np.random.default_rng(5)
    exact = np.abs(generator.normal(30.0, 5.0, (200, width)))
    own = exact + generator.uniform(-2e-5, 2e-5, exact.shape)
    exact[7], own[7] = 0.0, 0.0
    exact[7, 3] = own[7, 3] = 0.03  # where the reference happens to be exact
    exact[8] *= 1e-3  # small, and not cut off
    own[8] = exact[8] * (1 + 1e-7)
    flat = exact.reshape(-1)
    values = flat.copy()
    values[7 * width + 3] += 2e-5
    expected = expect("float32", (200, width), flat, own.reshape(-1), None, usual=usual)
    assert compare(values, expected).ok
    values[7 * width + 3] += 1e-3
    assert not compare(values, expected).ok
    if width > 64 and not usual:
        values = flat.copy()
        values[8 * width + 3] += 2e-5 * float(abs(exact[8, 3]))
        assert not compare(values, expected).ok, "a full row is judged by its own elements"


def test_wide_rows_of_which_a_few_elements_remain_are_allowed_what_others_lose() -> None:
    """Rows of 250 behind a bias and a ReLU that leave few of them; each element a sum of 72 products in another order."""
    generator = np.random.default_rng(12)
    left = generator.uniform(size=(4000, 72)).astype(np.float32)
    right = (generator.normal(size=(72, 250)) / 20).astype(np.float32)
    cut = generator.choice([0.0, 0.6], (4000, 1))
    wide, up = left.astype(np.float64), right.astype(np.float64)
    exact = np.maximum(wide @ up - cut, 0)
    moved = np.maximum(wide * (1 + 2.0**-23) @ up - cut, 0)
    own = np.maximum((left @ right).astype(np.float64) - cut, 0)
    other = np.maximum((left[:, ::-1] @ right[::-1]).astype(np.float64) - cut, 0)
    remaining = (exact > 0).sum(axis=1)
    assert ((remaining > 0) & (remaining < 5)).sum() > 100
    expected = expect("float32", (4000, 250), exact.ravel(), own.ravel(), moved.ravel(), 72)
    found = compare(other.ravel(), expected)
    assert found.ok, found.words
    low = left.astype(np.float16).astype(np.float64) @ up - cut
    assert not compare(np.maximum(low, 0).ravel(), expected).ok


def test_short_rows_in_which_terms_cancel_are_allowed_what_others_lose() -> None:
    """Rows of 3 behind a ReLU, each element a sum of 288 products: one alone says little of what they lost."""
    generator = np.random.default_rng(8)
    for _ in range(200):
        left = generator.normal(size=(128, 288)).astype(np.float32)
        right = (generator.normal(size=(288, 9)) / 17).astype(np.float32)
        wide, up = left.astype(np.float64), right.astype(np.float64)
        exact, moved = np.maximum(wide @ up, 0), np.maximum(wide * (1 + 2.0**-23) @ up, 0)
        own = np.maximum(sum(left[:, k : k + 16] @ right[k : k + 16] for k in range(0, 288, 16)), 0)
        other = np.maximum((left[:, ::-1] @ right[::-1]).astype(np.float64), 0)
        shape = (128, 3, 3)
        expected = expect("float32", shape, exact.ravel(), own.astype(np.float64).ravel(), moved.ravel(), 288)
        found = compare(other.ravel(), expected)
        assert found.ok, found.words
        low = left.astype(np.float16).astype(np.float64) @ up  # ten bits, as TF32 has
        assert not compare(np.maximum(low, 0).ravel(), expected).ok


def test_in_16_bits_a_small_row_is_not_allowed_what_large_ones_lose() -> None:
    generator = np.random.default_rng(6)
    exact = np.abs(generator.normal(30.0, 5.0, (200, 32)))
    exact[7] = 0.03
    own = exact * (1 + generator.uniform(-(2.0**-9), 2.0**-9, exact.shape))
    expected = expect("bfloat16", (200, 32), exact.reshape(-1), own.reshape(-1), None, usual=0.5)
    assert float(expected.bound[7, 0]) < 0.05 < 0.1 / 0.53, "a tenth beside 0.03 is wrong"


def test_equal_terms_may_lose_twice_of_what_rounding_to_nearest_loses() -> None:
    """Tensor cores may cut off the low bits of TF32 operands: twice the error at most, and where all terms are alike it adds up."""
    exact = np.linspace(1.0, 2.0, 640)
    own, tiered = exact * (1 + 1e-7), exact * (1 + 2e-4)
    plain, equal = (
        expect("float32", (10, 64), exact, own, None, tiered=[tiered], equal_terms=alike)
        for alike in (False, True)
    )
    assert np.allclose(equal.bound - equal.strict, 2 * (plain.bound - plain.strict), rtol=1e-4)
    assert (plain.bound > plain.strict).all()


def test_what_the_reference_itself_loses_in_its_tier_is_allowed() -> None:
    """A convolution over 85 channels and 29 x 29 places was called wrong, the reference's own among the candidates: tensor cores add eight
    products at a time to a float32 sum and cut off what it cannot hold, always towards zero."""
    terms = 85 * 29 * 29
    term = np.linspace(0.9, 1.1, 640)
    exact, found = term * terms, np.zeros(640, dtype=np.float32)
    for _ in range(terms // 8):
        wide = found + 8 * term
        near = wide.astype(np.float32)
        found = np.where(near > wide, np.nextafter(near, np.float32(0)), near)
    lost = found + (terms % 8) * term
    own, rounded = exact * (1 + 1e-6), exact * (1 + 1e-5)
    given = ("float32", (10, 64), exact, own, None, terms)
    assert not compare(lost, expect(*given, tiered=[rounded])).ok
    assert compare(lost, expect(*given, tiered=[rounded, lost])).ok
    assert not compare(exact - 10 * (exact - lost), expect(*given, tiered=[rounded, lost])).ok


def test_a_gradient_of_large_inputs_in_a_coarse_tier_must_only_be_finite() -> None:
    exact = np.array([[1.0, 2.0, 3.0]])
    expected = expect("bfloat16", exact.shape, exact, exact, None, 3, judged="finiteness_alone")
    for values, right in (
        ([1.0, 2.0, 3.0], True),
        ([9.0, 2.0, 3.0], True),
        ([np.nan, 2.0, 3.0], False),
        ([1.0, np.inf, 3.0], False),
    ):
        carried = from_float64(np.array(values), "bfloat16")
        assert compare(carried, expected).ok is right, values


@pytest.mark.parametrize(
    ("slack", "times", "ok"), [(2.0, 1.9, True), (2.0, 5.0, False), (8.0, 5.0, True), (8.0, 9.0, False)]
)
def test_values_of_steady_rows_may_be_off_by_a_few_bounds_at_large_inputs(
    slack: float, times: float, ok: bool
) -> None:
    exact = np.random.default_rng(0).normal(size=(4, 128))
    expected = expect("float32", exact.shape, exact, exact, None, 3, judged="finiteness", chance_slack=slack)
    values = exact.copy()
    values[2, 5] += times * expected.bound[2, 0] * expected.scale[2, 5]
    assert compare(values.reshape(-1), expected).ok is ok


@pytest.mark.parametrize("width", [32, 512])
@pytest.mark.parametrize("rows", [2, 4, 64])
@pytest.mark.parametrize("tier", [False, True])
def test_rows_of_zeros_do_not_widen_the_bound_of_others(width: int, rows: int, tier: bool) -> None:
    """Half of the rows, or more by one: the median falls between them or among them."""
    generator = np.random.default_rng(3)
    left = generator.normal(size=(rows, 256)).astype(np.float32)
    right = (generator.normal(size=(256, width)) / 16).astype(np.float32)
    wide, up = left.astype(np.float64), right.astype(np.float64)
    for masked in (rows // 2, rows // 2 + 1):
        kept = (np.arange(rows) >= masked)[:, None]
        if not kept.any():
            continue
        exact, own = (wide @ up) * kept, (left @ right).astype(np.float64) * kept
        moved = (wide * (1 + 2.0**-23)) @ up * kept
        rounded = [exact * (1 + 1e-7)] if tier else []
        expected = expect(
            "float32", (rows, width), exact.ravel(), own.ravel(), moved.ravel(), 256, tiered=rounded
        )
        other = (left[:, ::-1] @ right[::-1]).astype(np.float64) * kept
        assert compare(other.ravel(), expected).ok
        low = left.astype(np.float16).astype(np.float64) @ up * kept
        assert not compare(low.ravel(), expected).ok
        assert not compare((2 * exact).ravel(), expected).ok
        assert expected.bounds.usual < 1e-4


def test_one_large_row_does_not_widen_the_bound_of_rows_with_few_elements() -> None:
    generator = np.random.default_rng(0)
    exact = np.zeros((2000, 256))
    exact[0] = 1e6 * generator.normal(size=256)
    exact[1:, :5] = generator.normal(size=(1999, 5))
    own = exact * (1 + generator.uniform(-6e-8, 6e-8, exact.shape))
    expected = expect("float32", exact.shape, exact.ravel(), own.ravel(), None)
    low = exact.copy()
    low[1:] *= 1 + 5e-4  # as TF32 may
    assert compare(own.ravel(), expected).ok
    assert not compare(low.ravel(), expected).ok


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float32", "bfloat16", "complex64"])
@pytest.mark.parametrize("shape", [(4, 5), (3, 100), (1,), ()])
def test_the_summary_of_a_bound_is_the_same_for_numpy_and_torch(dtype: str, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    kinds = {"float32": torch.float64, "bfloat16": torch.float64, "complex64": torch.complex128}
    values = (
        torch.randn(shape, dtype=torch.float64)
        .mul(3)
        .relu()
        .to(kinds.get(dtype, getattr(torch, dtype)))
        .reshape(-1)
    )
    mine, theirs = (expect(dtype, shape, one, one, None) for one in (values, values.numpy()))
    assert mine.bounds == theirs.bounds
    assert np.array_equal(mine.steady_rows.numpy(), theirs.steady_rows)
