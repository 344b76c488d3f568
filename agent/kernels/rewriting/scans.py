"""Scans written as rounds of doubling steps, each of which reads and writes all of memory, become one pass.

In such a round every place joins its state with that of the place 1, then 2, 4, 8, ... before it; after all rounds it has joined all
up to itself, if joining is associative. That is tried with numbers of many sizes, and what comes of it is judged as any candidate is.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from agent.kernels.rewriting.expressions import expression, number, pointwise
from agent.kernels.rewriting.nodes import (
    add_call,
    arguments_of,
    is_operation,
    replace,
    same_sizes,
    value_of,
    writes,
)

#: Of fewer the compiler makes one pass, too.
LEAST_ROUNDS = 4
#: Tensors that are shifted together.
MOST_STATES = 4


class _Shift(NamedTuple):
    """A tensor of which each place has what was some places before it, or the fill where nothing was."""

    source: torch.fx.Node
    dim: int
    places: int
    fill: float


def doubled_scans(graph: torch.fx.Graph) -> int:
    """Replace doubling rounds by one scan; returns how many results were replaced."""
    if any(writes(node) for node in graph.nodes):
        return 0
    changed = 0
    while _one_scan(graph):
        changed += 1
        graph.eliminate_dead_code()
    return changed


def _one_scan(graph: torch.fx.Graph) -> bool:
    """Replace the result of some rounds, if there are any; whether it did."""
    alike: dict[Any, dict[torch.fx.Node, _Shift]] = {}
    for node in graph.nodes:
        shift = _shift_of(node)
        if shift is not None:
            sizes = tuple(str(size) for size in value_of(node).shape)
            alike.setdefault((shift.dim, sizes), {})[node] = shift
    return any(_is_replaced(graph, shifts) for shifts in alike.values())


def _shift_of(node: torch.fx.Node) -> _Shift | None:
    """What a slice of a padded tensor shifts; None for other nodes."""
    if not is_operation(node, "slice") or not is_operation(node.args[0], "pad"):
        return None
    cut, padded = arguments_of(node), arguments_of(node.args[0])
    source, pads = padded["self"], padded["pad"]
    value = value_of(source)
    if value.dtype not in (torch.float32, torch.bool) or not all(isinstance(one, int) for one in pads):
        return None
    dim = int(cut["dim"]) % value.dim()
    length, place = value.shape[dim], 2 * (value.dim() - 1 - dim)
    if not isinstance(length, int) or not isinstance(cut["end"], int):
        return None
    shifted = padded["mode"] == "constant" and [at for at, size in enumerate(pads) if size] == [place]
    whole = cut["start"] in (None, 0) and cut["end"] == length and cut["step"] == 1
    is_shift = shifted and whole and pads[place] > 0
    return _Shift(source, dim, pads[place], padded["value"] or 0.0) if is_shift else None


def _is_replaced(graph: torch.fx.Graph, shifts: dict[torch.fx.Node, _Shift]) -> bool:
    """Whether one of the shifts' sources had rounds, alone or with another, and their result is a scan's now."""
    any_node, any_shift = next(iter(shifts.items()))
    rounds = (value_of(any_node).shape[any_shift.dim] - 1).bit_length()
    states, second = (
        list(dict.fromkeys(shift.source for shift in shifts.values() if shift.places == places))
        for places in (1, 2)
    )
    if rounds < LEAST_ROUNDS or max(len(states), len(second)) > MOST_STATES:
        return False
    for count in (1, 2):
        for group in itertools.permutations(states, count):
            fills = [
                next(one.fill for one in shifts.values() if one.source is state and one.places == 1)
                for state in group
            ]
            for after in itertools.permutations(second, count):
                result = _result(group, after, shifts, fills, rounds)
                if result is not None and _holds(group, after, shifts, fills):
                    _scan_instead(graph, group, after, shifts, fills, any_shift.dim, result)
                    return True
    return False


def _result(
    states: Sequence[torch.fx.Node],
    after: Sequence[torch.fx.Node],
    shifts: dict[torch.fx.Node, _Shift],
    fills: list[float],
    rounds: int,
) -> torch.fx.Node | None:
    """The first state after the last round; None if there is none, or a round differs from the first."""
    wanted = [_Join(states, shifts, fills, 1).text(node) for node in after]
    now: list[torch.fx.Node | None] = [*after]
    for turn in range(1, rounds):
        if None in now or None in wanted:
            return None
        join = _Join([state for state in now if state is not None], shifts, fills, 1 << turn)
        now = [join.find(text) for text in wanted]
    result = now[0]
    if result is None or value_of(result).dtype != torch.float32 or not value_of(result).is_contiguous():
        return None
    return result


def _scan_instead(
    graph: torch.fx.Graph,
    states: Sequence[torch.fx.Node],
    after: Sequence[torch.fx.Node],
    shifts: dict[torch.fx.Node, _Shift],
    fills: list[float],
    dim: int,
    result: torch.fx.Node,
) -> None:
    """Put a scan in the place of the first state's result."""
    join = _Join(states, shifts, fills, 1)
    names = [join.result(node) for node in after]
    parameters = ", ".join(f"{side}{place}" for side in "ab" for place in range(len(states)))
    text = f"{parameters}: " + "; ".join([*join.statements, ", ".join(str(name) for name in names)])
    sources, first = zip(*(_read(state, "xy"[place]) for place, state in enumerate(states)), strict=True)
    names_in = ", ".join("xy"[: len(states)])
    first_text = f"{names_in}: {', '.join(first)}" if ", ".join(first) != names_in else ""
    with graph.inserting_before(result):
        scan = torch.ops.kernelwright.scan.default
        new = add_call(graph, scan, sources[0], (*sources, None)[1], dim, text, first_text)
    replace(graph, result, new)


def _holds(
    states: Sequence[torch.fx.Node],
    after: Sequence[torch.fx.Node],
    shifts: dict[torch.fx.Node, _Shift],
    fills: list[float],
) -> bool:
    """Whether joining is associative and a fill leaves the first state as it is, as far as numbers of many sizes show."""
    join, small = _Join(states, shifts, fills, 1), torch.fx.Graph()
    given: dict[torch.fx.Node, torch.fx.Node] = {}
    befores, nows = ([small.placeholder(f"{side}{place}") for place in range(len(states))] for side in "ab")
    for state, before, now in zip(states, befores, nows, strict=True):
        given |= {state: now} | dict.fromkeys(join.shifted(state), before)

    def copied(node: torch.fx.Node) -> torch.fx.Node:
        if node not in given:
            for one in node.all_input_nodes:
                copied(one)
            given[node] = small.node_copy(node, copied)
        return given[node]

    small.output([copied(node) for node in after])
    joined = torch.fx.GraphModule({}, small)
    draw = torch.Generator().manual_seed(0)

    def drawn(spread: float) -> list[torch.Tensor]:
        """States of 2,000 places, in double precision, of sizes from 10^-spread to 10^spread."""
        found = []
        for state in states:
            sizes = 10.0 ** (
                spread * (2 * torch.rand(2000, generator=draw, dtype=torch.float64, device="cpu") - 1)
            )
            values = sizes * torch.randn(2000, generator=draw, dtype=torch.float64, device="cpu")
            found.append(values > 0 if value_of(state).dtype == torch.bool else values)
        return found

    one, two, three, wide = drawn(1.5), drawn(1.5), drawn(1.5), drawn(30.0)
    left, right = joined(*joined(*one, *two), *three), joined(*one, *joined(*two, *three))
    fill = [torch.full_like(value, fill) for value, fill in zip(wide, fills, strict=True)]
    same = torch.allclose(joined(*fill, *wide)[0], wide[0], rtol=1e-7, atol=0.0)
    return same and all(
        torch.allclose(each.double(), other.double(), rtol=1e-7, atol=1e-7)
        for each, other in zip(left, right, strict=True)
    )


def _read(state: torch.fx.Node, name: str) -> tuple[torch.fx.Node, str]:
    """From which tensor a state is computed as it is read, and the expression of its element."""
    text = name
    if value_of(state).dtype != torch.float32 or state.op != "call_function":
        return state, text
    inputs = state.all_input_nodes
    if len(inputs) == 1 and value_of(inputs[0]).dtype == torch.float32:
        named = pointwise(state, lambda given: name if given is inputs[0] else number(given))
        if named is not None and same_sizes(value_of(inputs[0]), value_of(state)):
            return inputs[0], named
    return state, text


class _Join:
    """What a round makes of states at a place (``b0``, ``b1``) and of those some places before it (``a0``, ``a1``).

    Attributes:
        statements: each gives a name to an expression in Triton's language; truth values are integers between rounds.
    """

    def __init__(
        self,
        states: Sequence[torch.fx.Node],
        shifts: dict[torch.fx.Node, _Shift],
        fills: list[float],
        places: int,
    ) -> None:
        self._states, self._shifts, self._fills, self._places = states, shifts, fills, places
        self._names: dict[torch.fx.Node, str | None] = {}
        for place, state in enumerate(states):
            self._names[state] = self._leaf(f"b{place}", state)
            self._names |= dict.fromkeys(self.shifted(state), self._leaf(f"a{place}", state))
        self.statements: list[str] = []

    def shifted(self, state: torch.fx.Node) -> list[torch.fx.Node]:
        """The nodes that are a state so many places before, with its fill."""
        wanted = state, self._places, self._fills[list(self._states).index(state)]
        return [node for node, one in self._shifts.items() if (one.source, one.places, one.fill) == wanted]

    @staticmethod
    def _leaf(name: str, node: torch.fx.Node) -> str:
        return f"({name} != 0)" if value_of(node).dtype == torch.bool else name

    def text(self, node: torch.fx.Node) -> str | None:
        """Of a node alone."""
        kept, self._names, self.statements = self._names, dict(self._names), []
        found = self.result(node)
        text = None if found is None else "; ".join([*self.statements, found])
        self._names, self.statements = kept, []
        return text

    def result(self, node: torch.fx.Node) -> str | None:
        """A node's name as a state."""
        name = self._name_of(node)
        return f"{name}.to(tl.int32)" if name and value_of(node).dtype == torch.bool else name

    def find(self, text: str | None) -> torch.fx.Node | None:
        """The first node with a text among those that are computed from these states."""
        left, seen = list(self._names), set(self._names)
        while left:
            for user in left.pop(0).users:
                if user not in seen and user.op == "call_function":
                    seen.add(user)
                    found = self.text(user)
                    if found is not None and found == text:
                        return user
                    if found is not None:
                        left.append(user)
        return None

    def _name_of(self, given: Any) -> str | None:
        """A name for a node or number, after statements that compute it."""
        if not isinstance(given, torch.fx.Node):
            return number(given)
        if given not in self._names:
            value = value_of(given)
            alike = isinstance(value, torch.Tensor) and same_sizes(value, value_of(self._states[0]))
            text = expression(given, self._name_of) if alike and given.op == "call_function" else None
            self._names[given] = None if text is None else f"t{len(self.statements)}"
            if text is not None:
                self.statements.append(f"t{len(self.statements)} = {text}")
        return self._names[given]
