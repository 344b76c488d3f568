"""Scans written as rounds of doubling steps, each of which reads and writes all of memory, become one pass.

In such a round every place joins its state with that of the place 1, then 2, 4, 8, ... before it; after all rounds it has joined all
up to itself, if joining is associative. That is taken from the form of the graph, and what comes of it is judged as any candidate is.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import torch

from agent.kernels.rewriting.expressions import expression, number, pointwise
from agent.kernels.rewriting.nodes import (
    add_call,
    arguments_of,
    is_operation,
    replace,
    value_of,
    writes,
)

#: Of fewer the compiler makes one pass, too.
LEAST_ROUNDS = 4
MOST_STATES = 2


class _Shift(NamedTuple):
    """A tensor of which each place has what was some places before it, or the fill where nothing was."""

    source: torch.fx.Node
    dim: int
    places: int
    fill: float


def doubled_scans(graph: torch.fx.Graph) -> int:
    """Replace doubling rounds by one scan; returns how many results were replaced."""
    nodes = list(graph.nodes)
    if any(writes(node) for node in nodes):
        return 0
    shifts = {node: shift for node in nodes if (shift := _shift_of(node)) is not None}
    changed = 0
    for dim in sorted({shift.dim for shift in shifts.values()}):
        for shape in {tuple(value_of(node).shape) for node, shift in shifts.items() if shift.dim == dim}:
            own = {
                node: shift
                for node, shift in shifts.items()
                if shift.dim == dim and tuple(value_of(node).shape) == shape
            }
            changed += _replaced(graph, own, dim, shape[dim])
    return changed


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
    place = 2 * (value.dim() - 1 - dim)
    shifted = padded["mode"] == "constant" and [at for at, size in enumerate(pads) if size] == [place]
    whole = cut["start"] in (None, 0) and cut["end"] == value.shape[dim] and cut["step"] == 1
    return (
        _Shift(source, dim, pads[place], padded["value"] or 0.0)
        if shifted and whole and pads[place] > 0
        else None
    )


def _replaced(graph: torch.fx.Graph, shifts: dict[torch.fx.Node, _Shift], dim: int, length: Any) -> int:
    """Of rounds along one axis of tensors of one shape."""
    if not isinstance(length, int):
        return 0
    rounds = max(0, (length - 1).bit_length())
    amounts = {shift.places for shift in shifts.values()}
    if rounds < LEAST_ROUNDS or not {1 << number for number in range(rounds)} <= amounts:
        return 0
    states = list(dict.fromkeys(shift.source for shift in shifts.values() if shift.places == 1))
    second = list(dict.fromkeys(shift.source for shift in shifts.values() if shift.places == 2))
    if not 0 < len(states) == len(second) <= MOST_STATES:
        return 0
    for after in itertools.permutations(second):
        results = _rounds(states, list(after), shifts, rounds)
        if results is not None:
            return sum(
                _joined(graph, [states[place], *states[:place], *states[place + 1 :]],
                        [after[place], *after[:place], *after[place + 1 :]], shifts, result, dim)
                for place, result in enumerate(results) if result is not None
            )  # fmt: skip
    return 0


def _rounds(
    states: list[torch.fx.Node],
    after: list[torch.fx.Node],
    shifts: dict[torch.fx.Node, _Shift],
    rounds: int,
) -> list[torch.fx.Node | None] | None:
    """The states after the last round, None for one that is not computed; None if a round differs from the first."""
    wanted = [_Join(states, shifts, 1).text(node) for node in after]
    if None in wanted:
        return None
    now: list[torch.fx.Node | None] = [*after]
    for turn in range(1, rounds):
        if None in now:
            return None
        join = _Join([state for state in now if state is not None], shifts, 1 << turn)
        now = [join.find(text) for text in wanted]
    return None if all(state is None for state in now) else now


def _joined(
    graph: torch.fx.Graph,
    states: list[torch.fx.Node],
    after: list[torch.fx.Node],
    shifts: dict[torch.fx.Node, _Shift],
    result: torch.fx.Node,
    dim: int,
) -> int:
    """Put a scan in the place of the first state's result."""
    if value_of(states[0]).dtype != torch.float32 or not _keeps(states, after[0], shifts):
        return 0
    join = _Join(states, shifts, 1)
    names = [join.result(node) for node in after]
    parameters = ", ".join(f"{side}{place}" for side in "ab" for place in range(len(states)))
    text = f"{parameters}: " + "; ".join([*join.statements, ", ".join(str(name) for name in names)])
    sources, first = zip(*(_read(state, "xy"[place]) for place, state in enumerate(states)), strict=True)
    names_in = ", ".join("xy"[: len(states)])
    first_text = f"{names_in}: {', '.join(first)}" if ", ".join(first) != names_in else ""
    with graph.inserting_before(result):
        new = add_call(
            graph, torch.ops.kernelwright.scan.default, sources[0], (*sources, None)[1], dim, text, first_text
        )
    replace(graph, result, new)
    return 1


def _keeps(states: list[torch.fx.Node], after: torch.fx.Node, shifts: dict[torch.fx.Node, _Shift]) -> bool:
    """Whether what fills the places before the first leaves the first state as it is, whatever the others are."""
    small = torch.fx.Graph()
    given: dict[torch.fx.Node, torch.fx.Node] = {}
    values = []
    for place, state in enumerate(states):
        own = torch.linspace(-3.0, 3.0, 7).roll(3 * place)
        own = own > 0 if value_of(state).dtype == torch.bool else own
        fills = {
            node: shift.fill for node, shift in shifts.items() if shift.source is state and shift.places == 1
        }
        for node, value in (
            (state, own),
            *((node, torch.full_like(own, fill)) for node, fill in fills.items()),
        ):
            given[node] = small.placeholder(f"given_{len(given)}")
            values.append(value)

    def copied(node: torch.fx.Node) -> torch.fx.Node:
        if node not in given:
            for one in node.all_input_nodes:
                copied(one)
            given[node] = small.node_copy(node, copied)
        return given[node]

    small.output(copied(after))
    return bool(torch.allclose(torch.fx.GraphModule({}, small)(*values), values[0]))


def _read(state: torch.fx.Node, name: str) -> tuple[torch.fx.Node, str]:
    """From which tensor a state is computed as it is read, and the expression of its element."""
    text = name
    if value_of(state).dtype != torch.float32 or state.op != "call_function":
        return state, text
    inputs = state.all_input_nodes
    if len(inputs) == 1 and value_of(inputs[0]).dtype == torch.float32:
        named = pointwise(state, lambda given: name if given is inputs[0] else number(given))
        if named is not None and value_of(inputs[0]).shape == value_of(state).shape:
            return inputs[0], named
    return state, text


class _Join:
    """What a round makes of states at a place (``b0``, ``b1``) and of those some places before it (``a0``, ``a1``).

    Attributes:
        statements: each gives a name to an expression in Triton's language; truth values are integers between rounds.
    """

    def __init__(self, states: list[torch.fx.Node], shifts: dict[torch.fx.Node, _Shift], places: int) -> None:
        self._states = states
        self._names: dict[torch.fx.Node, str] = {}
        for place, state in enumerate(states):
            self._names[state] = self._leaf(f"b{place}", state)
            for node, shift in shifts.items():
                if shift.source is state and shift.places == places:
                    self._names[node] = self._leaf(f"a{place}", state)
        self.statements: list[str] = []

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
            alike = isinstance(value, torch.Tensor) and value.shape == value_of(self._states[0]).shape
            text = expression(given, self._name_of) if alike and given.op == "call_function" else None
            if text is None:
                return None
            self._names[given] = f"t{len(self.statements)}"
            self.statements.append(f"t{len(self.statements)} = {text}")
        return self._names[given]
