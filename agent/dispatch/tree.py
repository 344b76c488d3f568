"""A decision tree that picks a member for a call, and its text as Python and in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from agent.dispatch.features import Feature, Point


@dataclass(frozen=True)
class Leaf:
    """A leaf that runs one member.

    Attributes:
        member: its index; None for the reference.
        why: a summary of the leaf's measurements in words.
        faster: whether the member is confidently faster than the best baseline at this leaf.
    """

    member: int | None
    why: str = ""
    faster: bool = False


@dataclass(frozen=True)
class Split:
    """An inner node that tests one feature.

    Attributes:
        feature: the feature to test.
        limit: calls whose feature is at most this go to `low`; for conditions it is ignored.
        low: the subtree for calls that pass the test; for conditions, where they hold.
        high: the subtree for other calls.
    """

    feature: Feature
    limit: int
    low: Node
    high: Node

    def side(self, point: Point) -> Node:
        """The subtree for a call."""
        value = self.feature.value(point)
        return self.low if (value == 1 if self.feature.is_condition else value <= self.limit) else self.high


Node = Leaf | Split


def member_at(tree: Node, point: Point) -> int | None:
    """The member that the tree picks for a call; None for the reference."""
    while isinstance(tree, Split):
        tree = tree.side(point)
    return tree.member


def leaves(tree: Node) -> Iterator[Leaf]:
    """Every leaf, in the order of `python_lines`."""
    if isinstance(tree, Leaf):
        yield tree
    else:
        yield from leaves(tree.low)
        yield from leaves(tree.high)


def depth(tree: Node) -> int:
    """The number of splits on the longest path; 0 for a leaf."""
    return 0 if isinstance(tree, Leaf) else 1 + max(depth(tree.low), depth(tree.high))


def simplified(tree: Node) -> Node:
    """The tree without splits whose two sides run the same member."""
    if isinstance(tree, Leaf):
        return tree
    low, high = simplified(tree.low), simplified(tree.high)
    if isinstance(low, Leaf) and isinstance(high, Leaf) and low.member == high.member:
        return Leaf(low.member, low.why if low.why == high.why else "", low.faster or high.faster)
    return Split(tree.feature, tree.limit, low, high)


def renumbered(tree: Node, number: Mapping[int, int]) -> Node:
    """The tree with its member indices mapped by `number`."""
    if isinstance(tree, Leaf):
        return tree if tree.member is None else replace(tree, member=number[tree.member])
    return Split(tree.feature, tree.limit, renumbered(tree.low, number), renumbered(tree.high, number))


def python_lines(
    tree: Node, names: Mapping[str, str], places: Sequence[str], remark: Callable[[int | None], str]
) -> list[str]:
    """The tree as unindented lines that end a function body and return a member's index, or None for the reference.

    Args:
        tree: the tree.
        names: local variable of each dimension.
        places: expression of each tensor input.
        remark: gives one line of plain text for the comment beside a leaf.
    """
    if isinstance(tree, Leaf):
        return [f"return {tree.member}  # {remark(tree.member)}"]
    inside = python_lines(tree.low, names, places, remark)
    return [
        f"if {tree.feature.condition(tree.limit, names, places)}:",
        *(f"    {line}" for line in inside),
        *python_lines(tree.high, names, places, remark),
    ]


def sentences(tree: Node, name: Callable[[int | None], str]) -> list[tuple[str, str, str]]:
    """For each leaf: its condition, its member and the reason, in words."""
    return [(" and ".join(path) or "everywhere", name(leaf.member), leaf.why) for path, leaf in _paths(tree)]


def _paths(tree: Node) -> Iterator[tuple[list[str], Leaf]]:
    if isinstance(tree, Leaf):
        yield [], tree
        return
    for holds, side in ((True, tree.low), (False, tree.high)):
        words = tree.feature.words(tree.limit, holds)
        yield from (([words, *path], leaf) for path, leaf in _paths(side))
