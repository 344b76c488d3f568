"""The normal form: one for every way of writing a formula, and different ones for different formulas."""

from __future__ import annotations

import pytest

from agent.library.match.formula import read_formula
from agent.library.match.terms import Algebra
from agent.library.match.unify import GaveUp, unify

ROLES = {"x": "full", "y": "full", "z": "full", "w": "col", "m": "row", "eps": "constant"}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("x + y + z", "z + (y + x)"),
        ("x * y * z", "z * (x * y)"),
        ("x - y", "-(y - x)"),
        ("x / y", "x * y ** -1"),
        ("x / sqrt(y)", "x * rsqrt(y)"),
        ("2 * x + x", "3 * x"),
        ("x - x + y", "y"),
        ("x * x", "square(x)"),
        ("(x - y) ** 2", "(y - x) ** 2"),
        ("(2 * x + 4 * y) * z", "2 * z * (x + 2 * y)"),
        ("mean(2 * x + m)", "m + 2 * mean(x)"),
        ("mean(x * m)", "mean(x) * m"),
        ("sum(x) / 8", "mean(x)"),
        ("var(x)", "mean(square(x)) - mean(x) ** 2"),
        ("var(x)", "mean((x - mean(x)) * (x - mean(x)))"),
        ("1 / (1 + exp(-x))", "sigmoid(x)"),
        ("exp(x) / sum(exp(x))", "softmax(x)"),
        ("exp(x - max(x)) / sum(exp(x - max(x)))", "softmax(x)"),
        ("softmax(x + m)", "softmax(x)"),
        ("0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x ** 3)))", "gelu_tanh(x)"),
        ("(x ** 2) ** 1.0", "x * x"),
        ("3 ** 2 * x", "9 * x"),
    ],
)
def test_two_ways_of_writing_are_one_formula(one: str, other: str) -> None:
    algebra = Algebra(8)
    first, second = read_formula(one, ROLES, algebra), read_formula(other, ROLES, algebra)
    assert first == second or unify(first, second, algebra) is not None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("x + y", "x - y"),
        ("x * w", "x + w"),
        ("x * x", "x * x * x"),
        ("sqrt(x * x)", "x"),
        ("mean(x * x)", "mean(x) * mean(x)"),
        ("mean(x * w)", "mean(x) * w"),
        ("relu(x) + y", "relu(x + y)"),
        ("softmax(x * m)", "softmax(x)"),
        ("gelu(x)", "gelu_tanh(x)"),
        ("rsqrt(mean(square(x)) + 0.001)", "rsqrt(mean(square(x))) + 0.001"),
        ("x * y", "x * x"),
        ("max(x)", "mean(x)"),
        ("2 * x", "3 * x"),
    ],
)
def test_two_formulas_stay_apart(one: str, other: str) -> None:
    algebra = Algebra(8)
    first, second = read_formula(one, ROLES, algebra), read_formula(other, ROLES, algebra)
    found = unify(first, second, algebra)
    assert found is None or len({str(value) for value in found.values()}) < len(found)


def test_a_number_is_found() -> None:
    algebra = Algebra(8)
    pattern = read_formula("x * rsqrt(mean(square(x)) + eps)", ROLES, algebra)
    form = read_formula("y / sqrt(1e-6 + sum(y * y) / 8)", ROLES, algebra)
    assert unify(pattern, form, algebra) == {"x": "y", "eps": pytest.approx(1e-6)}


def test_a_number_must_be_the_same_everywhere() -> None:
    algebra = Algebra(8)
    pattern = read_formula("(x + eps) * (y + eps)", ROLES, algebra)
    assert unify(pattern, read_formula("(x + 2) * (y + 2)", ROLES, algebra), algebra) is not None
    assert unify(pattern, read_formula("(x + 2) * (y + 3)", ROLES, algebra), algebra) is None


def test_kinds_of_tensors_are_kept_apart() -> None:
    algebra = Algebra(8)
    assert (
        unify(read_formula("x * w", ROLES, algebra), read_formula("x * y", ROLES, algebra), algebra) is None
    )
    assert algebra.form_kind(read_formula("m * w", ROLES, algebra)) == "full"
    assert algebra.form_kind(read_formula("mean(x) + 1", ROLES, algebra)) == "row"


def test_a_comparison_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    algebra = Algebra(8)
    pattern = read_formula("exp(x) + exp(y) + exp(z)", ROLES, algebra)
    assert unify(pattern, pattern, algebra) is not None
    monkeypatch.setattr("agent.library.match.unify.STEP_LIMIT", 3)
    with pytest.raises(GaveUp):
        unify(pattern, pattern, algebra)


def test_a_formula_holds_nothing_but_arithmetic() -> None:
    for text in ("x.y", "open(x)", "x if y else z", "unknown", "x @ y", "x ** y"):
        with pytest.raises(ValueError, match="cannot hold"):
            read_formula(text, ROLES, Algebra(8))
