"""The text of a tree picks what the tree picks, for any tree and any call."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from agent.dispatch.domain import Domain, Expression, TensorInput
from agent.dispatch.features import KINDS, Feature, Point, features_of
from agent.dispatch.tree import Leaf, Node, Split, leaves, member_at, python_lines, sentences, simplified

AXES = (
    (Expression(1, ("rows",), 0), Expression(2, ("cols",), 1)),
    (Expression(1, ("rows",), 0), Expression(2, ("cols",), 1)),
    (Expression(0, (), 7), Expression(1, ("rows", "cols"), 0)),
)
DOMAIN = Domain(
    dims={},
    inputs=3,
    tensors=tuple(TensorInput(name, axes) for name, axes in zip("xyz", AXES, strict=True)),
    values=(),
    containers=(),
    constructor=(),
    dtypes=(),
    shapes=None,
    elements={},
)
NAMES = {"rows": "rows", "cols": "cols_"}


class Input:
    """As much of a tensor as a tree asks for."""

    def __init__(self, dtype: str, elements: int) -> None:
        self.dtype = getattr(torch, dtype)
        self.numel = lambda: elements


def call(generator: random.Random) -> Point:
    dims = {name: round(2 ** generator.uniform(0, 14)) for name in ("rows", "cols")}
    dtypes = tuple(generator.choice(("float32", "float16")) for _ in AXES)
    return Point(dims, dtypes, 3 * dims["rows"])


def grown(generator: random.Random, features: list[Feature], points: list[Point], depth: int) -> Node:
    if depth == 0 or generator.random() < 0.1:
        return Leaf(generator.choice((None, 0, 1, 2)))
    feature = generator.choice(features)
    limit = feature.value(generator.choice(points))
    low, high = (grown(generator, features, points, depth - 1) for _ in range(2))
    return Split(feature, limit, low, high)


@pytest.mark.parametrize("seed", range(20))
def test_the_text_and_the_tree_agree(seed: int) -> None:
    generator = random.Random(seed)
    points = [call(generator) for _ in range(60)]
    features = [*features_of(DOMAIN, ("rows", "cols"), points, 132), Feature("elements")]
    assert {feature.kind for feature in features} == set(KINDS)
    tree = grown(generator, features, points, 6)
    body = "\n".join(f"    {line}" for line in python_lines(tree, NAMES, list("xyz"), lambda _: "a member"))
    space: dict[str, Any] = {"torch": torch}
    exec(f"def choose(rows, cols_, x, y, z):\n{body}", space)
    for point in points:
        each = [Input(dtype, point.dims["rows"]) for dtype in point.dtypes]
        picked = space["choose"](point.dims["rows"], point.dims["cols"], *each)
        assert picked == member_at(tree, point) == member_at(simplified(tree), point)


def test_words_say_where_each_leaf_is() -> None:
    tree = Split(
        Feature("divisible", ("cols",), 16),
        0,
        Split(Feature("size", ("rows",)), 64, Leaf(0, "fast"), Leaf(None)),
        Leaf(1),
    )
    named = sentences(tree, lambda index: "the reference" if index is None else f"member {index}")
    assert named == [
        ("cols is a multiple of 16 and rows <= 64", "member 0", "fast"),
        ("cols is a multiple of 16 and rows > 64", "the reference", ""),
        ("cols is not a multiple of 16", "member 1", ""),
    ]


def test_questions_that_change_nothing_are_left_out() -> None:
    feature = Feature("size", ("rows",))
    tree = Split(feature, 8, Split(feature, 4, Leaf(0), Leaf(0, faster=True)), Leaf(1))
    small = simplified(tree)
    assert small == Split(feature, 8, Leaf(0, faster=True), Leaf(1))
    assert [leaf.member for leaf in leaves(small)] == [0, 1]


def test_only_what_tells_calls_apart_is_a_feature() -> None:
    points = [Point({"rows": rows, "cols": 64}, ("float32",) * 3) for rows in (3, 5)]
    found = features_of(DOMAIN, ("rows", "cols"), points, 0)
    assert [feature.words(4, True) for feature in found] == ["rows <= 4"], (
        "all others split the same, or not at all"
    )
