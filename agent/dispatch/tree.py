"""A tree that picks a member for a call: its two kinds of nodes, and its forms as Python and in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from agent.dispatch.features import Feature, Point


@dataclass(frozen=True)
class Leaf:
    """Here one member runs.

    Attributes:
        member: its index; None for the reference.
        why: what the measurements there say, for a reader.
        faster: whether it is confidently faster than the best baseline there.
    """

    member: int | None
    why: str = ""
    faster: bool = False


@dataclass(frozen=True)
class Split:
    """A question.

    Attributes:
        feature: what is asked for.
        limit: `low` is for calls where the feature is at most this; of conditions, where they hold.
        low: the one side.
        high: the other.
    """

    feature: Feature
    limit: int
    low: Node
    high: Node

    def side(self, point: Point) -> Node:
        """Where a call goes."""
        value = self.feature.value(point)
        return self.low if (value == 1 if self.feature.is_condition else value <= self.limit) else self.high


Node = Leaf | Split


def member_at(tree: Node, point: Point) -> int | None:
    """Which member the tree picks for a call."""
    while isinstance(tree, Split):
        tree = tree.side(point)
    return tree.member


def leaves(tree: Node) -> Iterator[Leaf]:
    """Every leaf, in the order of the text."""
    if isinstance(tree, Leaf):
        yield tree
    else:
        yield from leaves(tree.low)
        yield from leaves(tree.high)


def depth(tree: Node) -> int:
    """Questions on the longest way; 0 for a leaf."""
    return 0 if isinstance(tree, Leaf) else 1 + max(depth(tree.low), depth(tree.high))


def simplified(tree: Node) -> Node:
    """The tree without questions whose answer changes nothing."""
    if isinstance(tree, Leaf):
        return tree
    low, high = simplified(tree.low), simplified(tree.high)
    if isinstance(low, Leaf) and isinstance(high, Leaf) and low.member == high.member:
        return Leaf(low.member, low.why if low.why == high.why else "", low.faster or high.faster)
    return Split(tree.feature, tree.limit, low, high)


def renumbered(tree: Node, number: Mapping[int, int]) -> Node:
    """The tree with other indices for its members."""
    if isinstance(tree, Leaf):
        return tree if tree.member is None else replace(tree, member=number[tree.member])
    return Split(tree.feature, tree.limit, renumbered(tree.low, number), renumbered(tree.high, number))


def python_lines(
    tree: Node, names: Mapping[str, str], places: Sequence[str], remark: Callable[[int | None], str]
) -> list[str]:
    """The tree as the end of a function's body, without indentation: it returns a member's index, or None for the reference.

    Args:
        tree: the tree.
        names: local variable of each dimension.
        places: expression of each tensor input.
        remark: one line of plain text for the comment beside a leaf.
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
    """For each leaf: where, which member, and why."""
    return [(" and ".join(path) or "everywhere", name(leaf.member), leaf.why) for path, leaf in _paths(tree)]


def _paths(tree: Node) -> Iterator[tuple[list[str], Leaf]]:
    if isinstance(tree, Leaf):
        yield [], tree
        return
    for holds, side in ((True, tree.low), (False, tree.high)):
        words = tree.feature.words(tree.limit, holds)
        yield from (([words, *path], leaf) for path, leaf in _paths(side))
