"""Layouts and degenerate sizes: strided, channels_last, expanded, empty and without dimensions."""

from __future__ import annotations

import numpy as np
import pytest

from evaluator.client import Referee
from evaluator.content import distributions
from evaluator.content.pools import TensorInput, logical
from evaluator.oracle.compare import compare, contract
from evaluator.oracle.numbers import from_float64, to_float64
from evaluator.oracle.tolerance import expect
from evaluator.roles.frames import TensorMeta
from tests.evaluator.judging import judge, replaced, rules, task

LAYOUTS = task("""
    class Model(nn.Module):
        def forward(self, image, rows, row, every):
            return torch.relu(image) * 2.0, rows + row, every.sum(-1).t(), row.mean(0, keepdim=True).expand(8, 12)

    def get_inputs():
        return [
            torch.randn(2, 6, 5, 7).to(memory_format=torch.channels_last), torch.randn(12, 8).t(),
            torch.randn(1, 12).expand(8, 12), torch.randn(4, 6, 20)[:, :, ::2],
        ]

    def get_init_inputs():
        return []
    """)


def test_strided_inputs_and_outputs(referee: Referee) -> None:
    honest = replaced(
        LAYOUTS,
        ("torch.relu(image) * 2.0", "torch.clamp(image * 2.0, min=0)"),
        (".expand(8, 12), torch", ".expand(8, 12), torch"),
    )
    verdict = judge(referee, LAYOUTS, honest)
    assert verdict.verdict == "accepted", (verdict.reason, verdict.detail)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("torch.relu(image) * 2.0", "(torch.relu(image) * 2.0).contiguous()"),
        ("every.sum(-1).t()", "every.sum(-1).t().contiguous()"),
        ("return torch.relu", "row = row.contiguous(); return torch.relu"),
    ],
    ids=["channels_last", "permuted", "expanded"],
)
def test_a_contiguous_output_is_right_wherever_values_are(old: str, new: str, referee: Referee) -> None:
    verdict = judge(referee, LAYOUTS, replaced(LAYOUTS, (old, new)))
    assert verdict.verdict == "accepted", verdict.reason


def test_other_strides_than_the_references_are_refused_with_what_to_return(referee: Referee) -> None:
    rows_last = "(torch.relu(image) * 2.0).permute(2, 3, 0, 1).contiguous().permute(2, 3, 0, 1)"
    verdict = judge(referee, LAYOUTS, replaced(LAYOUTS, ("torch.relu(image) * 2.0", rows_last)))
    assert verdict.verdict == "contract_violation"
    assert "return it contiguous (.contiguous()) or with the reference's strides" in verdict.reason
    assert "output_contract" in rules(verdict)


@pytest.mark.parametrize(
    ("old", "new", "word", "rule"),
    [
        ("rows + row,", "torch.as_strided(rows, (8, 12), (12, 1)) + row,", "incorrect", "wrong_result"),
        ("every.sum(-1)", "torch.as_strided(every, (4, 6, 10), (120, 20, 1)).sum(-1)", "incorrect", "wrong_result"),
        ("return torch.relu", "every[0, 0, 0] += 0.5; return torch.relu", "contract_violation", "input_mutated"),
    ],
)  # fmt: skip
def test_what_ignores_strides_is_found(old: str, new: str, word: str, rule: str, referee: Referee) -> None:
    verdict = judge(referee, LAYOUTS, replaced(LAYOUTS, (old, new)))
    assert verdict.verdict == word, verdict.reason
    assert rule in rules(verdict)


SIZES = task("""
    from kernelbench_tasks import Dim
    DIMS = {"rows": Dim(0, 64, default=8), "cols": Dim(0, 64, default=9)}

    class Model(nn.Module):
        def forward(self, x, y):
            return x * 2 + y, x.sum(), (x.sum(-1) > 0), torch.tensor(3)

    def get_inputs(rows=8, cols=9):
        return [torch.randn(rows, cols), torch.randn(())]

    def get_init_inputs():
        return []
    """)


def test_empty_tensors_and_scalars(referee: Referee) -> None:
    shapes = [{"rows": r, "cols": c} for r, c in ((0, 9), (8, 0), (0, 0), (1, 1), (8, 9))]
    verdict = judge(referee, SIZES, replaced(SIZES, ("x * 2 + y", "y + x + x")), shapes)
    assert verdict.verdict == "accepted", (verdict.reason, verdict.detail)
    assert len(verdict.shapes) == 5
    crash = judge(referee, SIZES, replaced(SIZES, ("return x * 2", "x.view(-1)[0]; return x * 2")), shapes)
    assert crash.verdict == "runtime_error"
    wrong = judge(referee, SIZES, replaced(SIZES, ("x.sum(),", "x.sum() + (x.numel() == 0),")), shapes)
    assert wrong.verdict == "incorrect", wrong.reason
    one = judge(referee, SIZES, replaced(SIZES, ("x.sum(),", "x.sum().reshape(1),")), shapes)
    assert one.verdict == "contract_violation"
    assert "shape [1]" in one.reason


def test_layouts_that_mean_the_same_are_the_same() -> None:
    expanded = TensorMeta("float32", (4, 5), (0, 1))
    rows = TensorMeta("float32", (4, 5), (5, 1))
    assert contract(rows, expanded) == ""
    assert contract(expanded, rows)
    assert contract(TensorMeta("float32", (1, 5), (77, 1)), TensorMeta("float32", (1, 5), (5, 1))) == ""
    assert contract(TensorMeta("float32", (0, 5), (1, 9)), TensorMeta("float32", (0, 5), (5, 1))) == ""
    assert contract(TensorMeta("float32", (4, 5), (1, 4)), rows)
    assert contract(rows, TensorMeta("float32", (4, 5), (1, 4))) == ""
    assert contract(TensorMeta("float32", (4, 5), (10, 2)), TensorMeta("float32", (4, 5), (1, 4)))


@pytest.mark.parametrize(
    ("shape", "strides", "span"),
    [((6, 10), (1, 6), 60), ((6, 10), (20, 2), 119), ((6, 10), (1, 0), 6), ((2, 3, 4), (12, 1, 3), 24)],
)
def test_strided_contents_are_fresh_and_legal(
    shape: tuple[int, ...], strides: tuple[int, ...], span: int
) -> None:
    generator = np.random.default_rng(5)
    meta = TensorMeta("float32", shape, strides)
    draws = [np.full(span, np.nan, dtype=np.float32) for _ in range(3)]
    for draw in draws:
        logical(draw, meta)[...] = generator.uniform(1, 2, shape)
    tensor = TensorInput(meta, draws)
    assert tensor.rollable
    chosen, offsets = tensor.draw(40, generator)
    contents = [tensor.rebuild(int(d), int(o)) for d, o in zip(chosen, offsets, strict=True)]
    assert len({logical(content, meta).tobytes() for content in contents}) > min(40, span) // 2
    assert all(content.min() >= 1 and content.max() <= 2 for content in contents), (
        "gaps hold legal values, too"
    )
    target = distributions.draw("constant_rows", tensor)
    assert (np.ptp(logical(target, meta), axis=-1) == 0).all()


def test_masks_stay_and_random_flags_roll() -> None:
    generator = np.random.default_rng(5)
    meta = TensorMeta("bool", (32, 32), (32, 1))

    def flags(*draws: np.ndarray) -> TensorInput:
        return TensorInput(meta, [draw.reshape(-1) for draw in draws])

    assert flags(*(generator.random((3, 32, 32)) > 0.4)).rollable
    lengths = generator.integers(1, 32, (3, 32, 1))
    assert not flags(*(np.arange(32) < lengths)).rollable
    fixed = generator.random((32, 32)) > 0.5
    assert not flags(fixed, fixed, fixed).rollable


# -- where errors gather -----------------------------------------------------------------------------------------


def test_errors_in_one_row_do_not_hide_behind_larger_rows() -> None:
    generator = np.random.default_rng(5)
    exact = generator.normal(size=(1000, 64)) * np.exp2(generator.uniform(-8, 8, (1000, 1)))
    own = exact.astype(np.float32).astype(np.float64)
    expected = expect("float32", exact.shape, exact.ravel(), own.ravel(), None)
    got = own.copy()
    small = int(np.abs(exact).max(axis=1).argmin())
    got[small] *= 1 + 1e-4
    assert np.abs(got - exact).max() < 1e-5 * np.sqrt(np.mean(exact**2)), "a global bound would not see it"
    assert not compare(got.astype(np.float32).ravel(), expected).ok
    assert compare(own.astype(np.float32).ravel(), expected).ok


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3fn"])
@pytest.mark.parametrize("where", ["everywhere", "rows"])
def test_many_small_errors_of_low_precision_add_up(dtype: str, where: str) -> None:
    """Each element is within two spacings of the right one; the tile as a whole is not."""
    generator = np.random.default_rng(5)
    exact = generator.normal(size=(256, 128))
    own = to_float64(from_float64(exact, dtype), dtype)
    expected = expect(dtype, exact.shape, exact.ravel(), own.ravel(), None)
    assert compare(from_float64(exact, dtype).ravel(), expected).ok
    bias = np.ones((256, 1))
    bias[slice(None) if where == "everywhere" else slice(64, 80)] += 3.0 * np.finfo(np.float16).eps * {
        "float16": 1.0, "bfloat16": 8.0, "float8_e4m3fn": 128.0
    }[dtype]  # fmt: skip
    got = from_float64(exact * bias, dtype).ravel()
    comparison = compare(got, expected)
    assert not comparison.ok
    assert "root mean square" in comparison.words or comparison.ratio > 1
