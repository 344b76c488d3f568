"""Reads a captured graph as a program over rows: pointwise operations, with sums, maxima, scans and sorts along the last axis.

A graph qualifies if each of its tensors is as large as an input ("full"), has one value for each column ("row") or one for each row
("col", or "flat" without the last axis). Truth values and counts are floats. `row_program.py` writes its C++.

It runs in the sandbox beside the capture program, sent as text, so it imports nothing else of this project.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

#: C++ of operands {0} and {1}, which are vectors or single values.
POINTWISE = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "rsub": "{1} - {0}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "maximum": "larger_or_nan({0} - NONE, {1} - NONE)",
    "minimum": "smaller_or_nan({0} - NONE, {1} - NONE)",
    "neg": "-{0}",
    "abs": "magnitude({0})",
    "relu": "relu({0})",
    "square": "{0} * {0}",
    "reciprocal": "1.f / {0}",
    "exp": "EXP({0})",
    "log": "LOG({0})",
    "sqrt": "SQRT({0})",
    "rsqrt": "1.f / SQRT({0})",
    "sigmoid": "1.f / (1.f + EXP(-{0}))",
    "silu": "{0} / (1.f + EXP(-{0}))",
    "tanh": "TANH({0})",
    "erf": "ERF({0})",
    **{
        name: f"{{0}} - NONE {sign} {{1}} - NONE ? NONE + 1.f : NONE"
        for name, sign in {"gt": ">", "ge": ">=", "lt": "<", "le": "<=", "eq": "==", "ne": "!="}.items()
    },
}
#: The same for whole numbers, of which the lower 32 bits are computed, as hashes are.
WORDS = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "and": "{0} & {1}",
    "or": "{0} | {1}",
    "xor": "{0} ^ {1}",
    "rshift": "{0} >> {1}",
}
WORD = 1 << 32
WHERE = "{0} - NONE != NONE ? {1} - NONE : {2} - NONE"
#: Operations whose result may be of another type: truth values, and how many of them there are in a row.
OTHER_TYPES = {
    torch.bool: frozenset(("gt", "ge", "lt", "le", "eq", "ne")),
    torch.int64: frozenset(("sum", "add", "sub", "clamp", "clamp_min", "clamp_max", "argmax", "argmin")),
}
#: Where a row has its largest or smallest element, which may be NaN; the smallest of these is the first one.
WHERE_IT_IS = "({0} == {1} - NONE) | ({0} != {0}) ? {2} : NONE + FAR"
#: The elements, and their places, without the largest one that was taken.
WITHOUT = "PLACE == {1} - NONE ? NONE - INFINITY : {0}"
WITHOUT_PLACE = "PLACE == {1} - NONE ? NONE + FAR : {0}"
MOST_TAKEN = 4
MOST_ADDED = 1024  # to a count, of which a program has at most `MOST_VALUES`
ALL = (1 << 63) - 1  # the end of a slice that has none
POWERS = {2: "{0} * {0}", 3: "{0} * {0} * {0}", 0.5: "SQRT({0})", -0.5: "1.f / SQRT({0})", -1: "1.f / {0}"}
#: (1 + tanh(u)) / 2 is 1 / (1 + exp(-2 u)): one exponential, and the left tail keeps its digits.
GELU_TANH = "{0} / (1.f + EXP(-1.59576912f * ({0} + 0.044715f * ({0} * {0} * {0}))))"
GELU = "0.5f * {0} * (1.f + ERF({0} * 0.70710678f))"
#: These change nothing here but a tensor's type or place, if its sizes stay.
SAME = frozenset(
    "clone detach alias contiguous to _to_copy type_as float dropout view reshape expand expand_as".split()
)
REDUCTIONS = {"sum": "sum", "mean": "sum", "amax": "larger_or_nan", "amin": "smaller_or_nan"}
#: Functions of simd.h that put a row's running values, or its sorted ones, in its place.
SCANS = {"logcumsumexp": "running_logsumexp", "cumsum": "running_total", "sort": "sorted_up"}
DOWN = "sorted_down"
#: The element of its first operand's row at the place that the second says.
PICK = "PICK({0}, {1})"
MOST_VALUES = 150
EXACT = 1 << 23  # whole numbers up to here are float32, and twice as many


class NotRows(Exception):
    """The graph is no such program."""


@dataclass(eq=False)
class Value:
    """One value.

    Attributes:
        kind: "full", "row", "col" or "flat"; "several": the operands are a row's first, second element and so on.
        text: C++ of its operands; empty for an input.
        operands: what {0}, {1} in the text are.
        reduction: how the operand is joined along a row, of `REDUCTIONS` or, where each element has its own result, `SCANS`; else
            empty.
        after: how many reductions and scans have to come before it.
        name: in C++.
        mask: an input of truth values, which are 0 and 1.
        place: an input of whole numbers that say which element of a row is meant, or a hash begins with.
        word: the lower 32 bits of whole numbers: "low", or "whole" where the others are zero; else empty.
    """

    kind: str
    text: str
    operands: list[Value] = field(default_factory=list)
    reduction: str = ""
    after: int = 0
    name: str = ""
    mask: bool = False
    place: bool = False
    word: str = ""


class Reader:
    """Reads a graph of `make_fx(pre_dispatch=True)`.

    Attributes:
        values: in an order in which they can be computed.
        inputs: places of the placeholders that are used, and their values.
        main: place of a float32 placeholder that has the full size.
        outputs: values.
        counts: which outputs are int64, as a count and a place are.
    """

    def __init__(self, graph: torch.fx.Graph, tensors: int) -> None:
        self.values: list[Value] = []
        self.inputs: list[tuple[int, Value]] = []
        self.outputs: list[Value] = []
        self.counts: list[bool] = []
        self._known: dict[Any, Any] = {}
        self._orders: dict[str, Callable[[dict[str, Any]], Any]] = {
            "sort": self._sort,
            "median": self._rank,
            "kthvalue": self._rank,
            "topk": self._top,
            "gather": self._gather,
            "cross_entropy_loss": self._cross_entropy,
        }
        places = [node for node in graph.nodes if node.op == "placeholder"]
        floats = [place for place in range(tensors) if places[place].meta["val"].dtype == torch.float32]
        self.main = max(floats, key=lambda place: len(sizes_of(places[place])), default=0)
        self.full = sizes_of(places[self.main]) if floats else []
        self._columns = places[self.main].meta["val"].shape[-1] if self.full else 0
        if len(self.full) < 2 or self.full[-1] in ("0", "1"):
            raise NotRows("no input has rows")
        for node in graph.nodes:
            if node.op == "placeholder" and (node.users or node is places[self.main]):
                self._known[node] = self._input(node, places.index(node))
            elif node.op == "call_function":
                value = self._known[node] = self._value(node)
                one_tensor = isinstance(node.meta.get("val"), torch.Tensor)
                if one_tensor and value.kind != "several" and sizes_of(node) not in self._sizes_of(value):
                    raise NotRows(f"{node.target} of other sizes")
            elif node.op == "output":
                self.outputs = [self._known[one] for one in node.args[0]]
                if not all(one.meta["val"].is_contiguous() for one in node.args[0]):
                    raise NotRows("an output is not contiguous")
                types = [one.meta["val"].dtype for one in node.args[0]]
                self.counts = [dtype == torch.int64 for dtype in types]
                if not set(types) <= {torch.float32, torch.int64}:
                    raise NotRows("an output is neither float32 nor int64")
        if any(
            one.kind not in ("full", "col", "flat") or not one.text or is_place(one) or one.word
            for one in self.outputs
        ):
            raise NotRows("an output has no rows, or is an input")

    def _add(
        self, kind: str, text: str, operands: list[Value], reduction: str = "", *, word: str = ""
    ) -> Value:
        for known in self.values:
            if text and (known.text, known.reduction, known.kind, known.word) == (
                text,
                reduction,
                kind,
                word,
            ):
                if list(map(id, known.operands)) == list(map(id, operands)):
                    return known
        if len(self.values) >= MOST_VALUES:
            raise NotRows("too many operations")
        after = max((one.after for one in operands), default=0) + bool(reduction)
        self.values.append(Value(kind, text, operands, reduction, after, f"v{len(self.values)}", word=word))
        return self.values[-1]

    def _input(self, node: torch.fx.Node, place: int) -> Value:
        sizes, tensor = sizes_of(node), node.meta["val"]
        mask, whole = tensor.dtype == torch.bool, tensor.dtype == torch.int64
        if not (mask or whole or tensor.dtype == torch.float32) or not tensor.is_contiguous():
            raise NotRows("an input is not float32, bool or int64, or not contiguous")
        if whole:
            kind = "col" if sizes in (self.full[:-1], [*self.full[:-1], "1"]) else ""
        elif sizes == self.full:
            kind = "full"
        elif sizes[-1:] == self.full[-1:] and set(sizes[:-1]) <= {"1"}:
            kind = "row"
        else:
            kind = "col" if sizes == [*self.full[:-1], "1"] and not mask else ""
        if not kind:
            raise NotRows("an input has other sizes")
        value = self._add(kind, "", [])
        value.mask, value.place = mask, whole
        self.inputs.append((place, value))
        return self._add("flat", "{0}", [value]) if whole and len(sizes) < len(self.full) else value

    def _value(self, node: torch.fx.Node) -> Any:
        out = node.meta.get("val")
        if isinstance(out, torch.SymInt):
            return self._add("size", str(out.node.expr), [])
        if node.target is operator.getitem:
            source, place = node.args
            found = self._known[source]
            if isinstance(found, tuple):
                return found[int(str(place))]
            if place != 0 and node.users:
                raise NotRows("places of sorted elements")
            return found
        schema = getattr(node.target, "_schema", None)
        if schema is None or schema.is_mutable:
            raise NotRows(str(node.target))
        name = schema.name.removeprefix("aten::")
        given: dict[str, Any] = {one.name: one.default_value for one in schema.arguments}
        given |= dict(zip(given, node.args, strict=False)) | node.kwargs
        given = {
            key: self._known[one] if isinstance(one, torch.fx.Node) else one for key, one in given.items()
        }
        first, *rest = given.values()
        if name == "arange" and isinstance(out, torch.Tensor):
            return self._numbers(given, node)
        if not isinstance(first, Value):
            raise NotRows(f"{name} of nothing that is known")
        operands = [one for one in given.values() if isinstance(one, Value)]
        if any(one.word for one in operands):
            return self._word(name, given, out)
        if name == "unsqueeze" and first.kind == "flat":
            return first.operands[0]
        if name == "squeeze" and first.kind == "col":
            return self._add("flat", "{0}", [first])
        if name in self._orders and first.kind == "full":
            return self._orders[name](given)
        if name == "slice" and rest[1:] == [0, ALL, 1]:
            return first
        if any(one.kind == "several" for one in given.values() if isinstance(one, Value)):
            if name != "select" or given["dim"] % len(self.full) != len(self.full) - 1:
                raise NotRows("several elements of a row at once")
            return self._add("flat", "{0}", [first.operands[given["index"]]])
        if operands and all(map(is_place, operands)):
            return self._word(name, given, out)
        if any(map(is_place, operands)):
            raise NotRows("whole numbers that are not places")
        self._check_type(name, node, given)
        if name in SAME and not given.get("train"):
            return first
        if given.get("alpha", 1) != 1 or given.get("rounding_mode") is not None:
            raise NotRows(f"{name} with a factor or rounding")
        if name in POINTWISE:
            return self._pointwise(POINTWISE[name], first, *rest[: POINTWISE[name].count("{1}")])
        if name == "where":
            return self._pointwise(WHERE, *given.values())
        if name == "gelu":
            return self._pointwise(GELU_TANH if given["approximate"] == "tanh" else GELU, first)
        if name == "pow" and isinstance(given.get("exponent"), int | float) and given["exponent"] in POWERS:
            return self._pointwise(POWERS[given["exponent"]], first)
        if name in ("clamp", "clamp_min", "clamp_max"):
            for end, change in (("min", "maximum"), ("max", "minimum")):
                if given.get(end) is not None:
                    first = self._pointwise(POINTWISE[change], first, given[end])
            return first
        if first.kind != "full":
            raise NotRows(f"{name} of something else than rows")
        if name in ("layer_norm", "rms_norm") and len(given["normalized_shape"]) == 1:
            return self._norm(name, given, first)
        return self._along_rows(name, given, first)

    def _pointwise(self, text: str, *operands: Any) -> Value:
        values: list[Value] = []
        parts = []
        for one in operands:
            if isinstance(one, Value) and one.kind == "size":
                if one.text != self.full[-1]:
                    raise NotRows("another size than that of rows")
                parts.append("count")
            elif isinstance(one, Value):
                parts.append(f"{{{len(values)}}}")
                values.append(one)
            else:
                parts.append(number(one))
        kinds = {one.kind for one in values}
        if kinds == {"flat"}:  # always one of a "col"
            col = self._pointwise(text.format(*parts), *(one.operands[0] for one in values))
            return self._add("flat", "{0}", [col])
        if "flat" in kinds:
            raise NotRows("values of rows without their axis")
        kind = "full" if "full" in kinds or {"row", "col"} <= kinds else kinds.pop()
        return self._add(kind, text.format(*parts), values)

    def _word(self, name: str, given: dict[str, Any], out: Any) -> Value:
        """Arithmetic of whole numbers modulo 2**32, and these as floats."""
        name = name.strip("_").removeprefix("bitwise_").replace("right_shift", "rshift")
        first, *others = given.values()
        if name in SAME and isinstance(out, torch.Tensor) and first.word:
            if out.dtype == torch.int64:
                return first
            if out.dtype == torch.float32 and first.word == "whole":
                return self._add(first.kind, "FLOAT({0})", [first])
        if name not in WORDS or given.get("alpha", 1) != 1 or out.dtype != torch.int64:
            raise NotRows("arithmetic of whole numbers")
        parts: list[str] = []
        values: list[Value] = []
        whole: list[bool] = []
        for one in (first, others[0]):
            if isinstance(one, Value) and (one.word or (one.place and one.kind == "col")):
                parts.append(f"{{{len(values)}}}")
                values.append(one)
                whole.append(one.word == "whole")
            elif isinstance(one, int) and not isinstance(one, bool):
                parts.append(f"{one % WORD}u")
                whole.append(0 <= one < WORD)
            else:
                raise NotRows("arithmetic of whole and other numbers")
        if name == "rshift" and not (isinstance(others[0], int) and 0 <= others[0] < 32 and whole[0]):
            raise NotRows("a shift of what has more than 32 bits")
        kinds = {one.kind for one in values}
        kind = "full" if "full" in kinds or {"row", "col"} <= kinds else kinds.pop()
        exact = {"and": any(whole), "or": all(whole), "xor": all(whole), "rshift": True}.get(name, False)
        return self._add(kind, WORDS[name].format(*parts), values, word="whole" if exact else "low")

    def _check_type(self, name: str, node: torch.fx.Node, given: dict[str, Any]) -> None:
        out = node.meta.get("val")
        if not isinstance(out, torch.Tensor):
            raise NotRows(f"{name} gives no tensor")
        if out.dtype != torch.float32 and name not in OTHER_TYPES.get(out.dtype, ()):
            raise NotRows(f"{name} gives no float32")
        if out.dtype == torch.int64:
            self._check_count(name, node, given)

    def _check_count(self, name: str, node: torch.fx.Node, given: dict[str, Any]) -> None:
        """Counts and places are floats here, and have to stay exact."""
        first, *rest = given.values()
        source = node.args[0]
        of_truth = isinstance(source, torch.fx.Node) and source.meta["val"].dtype == torch.bool
        if name in ("argmax", "argmin") or (name == "sum" and of_truth):
            self._limit()
            return
        numbers = [one for one in rest if one is not None]
        small = all(isinstance(one, int) and abs(one) <= MOST_ADDED for one in numbers)
        if name == "sum" or first.kind not in ("col", "flat") or not small:
            raise NotRows("arithmetic of whole numbers")

    def _numbers(self, given: dict[str, Any], node: torch.fx.Node) -> Value:
        """Numbers from a first one on, one for each column."""
        start, dtype = given.get("start", 0), node.meta["val"].dtype
        if sizes_of(node) != self.full[-1:] or given.get("step", 1) != 1:
            raise NotRows("other numbers than those of columns")
        self._limit()
        if dtype == torch.int64 and start == 0:
            return self._add("row", "NUMBER", [], word="whole")
        if dtype != torch.float32:
            raise NotRows("numbers of columns in another type")
        return self._add("row", f"PLACE + {number(start)}", [])

    def _limit(self) -> None:
        """Numbers of columns, which are floats here, have to be exact."""
        if not self._columns < EXACT:  # with a symbol, it becomes a condition
            raise NotRows("too many columns to number")

    def _first(self, join: str, x: Value, places: Value | None = None) -> tuple[Value, Value]:
        """A row's largest or smallest element, and where the first one is."""
        most = self._reduce(join, x)
        places = self._add("row", "PLACE + 0.f", []) if places is None else places
        return most, self._reduce("smaller_or_nan", self._pointwise(WHERE_IT_IS, x, most, places))

    def _top(self, given: dict[str, Any]) -> Any:
        """The largest elements one after the other, and their places: both as "several"."""
        x, count, dim = given["self"], given["k"], given["dim"]
        if (
            not isinstance(count, int)
            or not 0 < count <= MOST_TAKEN
            or dim % len(self.full) != len(self.full) - 1
            or not given["largest"]
        ):
            raise NotRows("topk of many elements, of the smallest, or along other axes")
        self._limit()
        found, places = [], self._add("row", "PLACE + 0.f", [])
        for _ in range(count):
            found.append(self._first("larger_or_nan", x, places))
            x = self._pointwise(WITHOUT, x, found[-1][1])
            places = self._pointwise(WITHOUT_PLACE, places, found[-1][1])
        return tuple(self._add("several", "", list(each)) for each in zip(*found, strict=True))

    def _gather(self, given: dict[str, Any]) -> Value:
        self._limit()
        index = given["index"]
        if given["dim"] % len(self.full) != len(self.full) - 1 or index.kind != "col":
            raise NotRows("gather along other axes, or of several elements")
        return self._element(given["self"], index)

    def _element(self, x: Value, index: Value) -> Value:
        """A row's element at a place; NaN where torch fails since there is no such place."""
        found = self._add("col", PICK, [x, index])
        return self._pointwise("{1} >= 0.f && {1} < count ? {0} : NAN", found, index)

    def _cross_entropy(self, given: dict[str, Any]) -> Value:
        """The loss of each row, whose target is a place; NaN where torch fails since there is no such place."""
        x, target = given["self"], given["target"]
        usual = (given["weight"], given["reduction"], given["label_smoothing"]) == (None, 0, 0.0)
        if not usual or target.kind != "flat" or len(self.full) != 2:
            raise NotRows("another loss than that of each row")
        self._limit()
        target = target.operands[0]
        loss = self._element(self._along_rows("log_softmax", {"dim": -1}, x), target)
        loss = self._pointwise(f"{{1}} == {number(given['ignore_index'])} ? 0.f : -{{0}}", loss, target)
        return self._add("flat", "{0}", [loss])

    def _sort(self, given: dict[str, Any]) -> Value:
        return self._along_rows("sort", given, given["self"])

    def _rank(self, given: dict[str, Any]) -> Value:
        """The median, which is NaN where a NaN is, or the k-th smallest element."""
        if given.get("dim") is None or given["dim"] % len(self.full) != len(self.full) - 1:
            raise NotRows("an order along other axes")
        self._limit()
        ordered = self._add("full", "{0}", [given["self"]], SCANS["sort"])
        if given.get("k") is None:
            middle = self._add(
                "col", PICK, [ordered, self._add("col", "std::floor((count - 1.f) / 2.f)", [])]
            )
            last = self._add("col", PICK, [ordered, self._add("col", "count - 1.f", [])])
            out = self._pointwise("{1} != {1} ? {1} : {0}", middle, last)
        else:
            out = self._add("col", PICK, [ordered, self._add("col", number(given["k"] - 1), [])])
        return out if given.get("keepdim") else self._add("flat", "{0}", [out])

    def _reduce(self, join: str, x: Value) -> Value:
        return self._add("col", "{0}", [x], join)

    def _mean(self, x: Value) -> Value:
        return self._pointwise("{0} / count", self._reduce("sum", x))

    def _centered(self, x: Value) -> tuple[Value, Value]:
        """Deviations from the mean, and the mean of their squares.

        Deviations from a mean that is exact add up to zero; what they do add up to is taken out. It costs no pass.
        """
        less = self._pointwise("{0} - {1}", x, self._mean(x))
        slip, square = self._mean(less), self._mean(self._pointwise("{0} * {0}", less))
        variance = self._pointwise("{0} < 3e38f ? std::max({0} - {1} * {1}, 0.f) : {0}", square, slip)
        return self._pointwise("{0} - {1}", less, slip), variance

    def _norm(self, name: str, given: dict[str, Any], x: Value) -> Value:
        if name == "layer_norm":
            x, variance = self._centered(x)
        else:
            variance = self._mean(self._pointwise("{0} * {0}", x))
        eps = torch.finfo(torch.float32).eps if given["eps"] is None else given["eps"]
        x = self._pointwise("{0} * {1}", x, self._pointwise("1.f / SQRT({0} + {1})", variance, eps))
        for text, other in (("{0} * {1}", given["weight"]), ("{0} + {1}", given.get("bias"))):
            x = x if other is None else self._pointwise(text, x, other)
        return x

    def _along_rows(self, name: str, given: dict[str, Any], x: Value) -> Value:
        dims = given.get("dim")
        dims = [dims] if isinstance(dims, int) else list(dims or ())
        if [dim % len(self.full) for dim in dims] != [len(self.full) - 1] or given.get("dtype") is not None:
            raise NotRows(f"{name} along other axes")
        if name in SCANS:
            return self._add("full", "{0}", [x], DOWN if given.get("descending") else SCANS[name])
        if name in ("softmax", "log_softmax", "logsumexp"):
            largest = self._reduce("larger_or_nan", x)
            if name == "logsumexp":  # of Inf it is Inf
                largest = self._pointwise("std::isinf({0}) ? 0.f : {0}", largest)
            less = self._pointwise("{0} - {1}", x, largest)
            power = self._pointwise(POINTWISE["exp"], less)
            total = self._reduce("sum", power)
            if name == "softmax":
                return self._pointwise("{0} * {1}", power, self._pointwise("1.f / {0}", total))
            logarithm = self._pointwise("LOG({0})", total)
            if name == "log_softmax":
                return self._pointwise("{0} - {1}", less, logarithm)
            out = self._pointwise("{0} + {1}", logarithm, largest)
        elif name in ("var", "std"):
            correction = given.get("correction")
            fewer = number(int(given.get("unbiased", True)) if correction is None else correction)
            out = self._pointwise(f"{{0}} * count / std::max(count - {fewer}, 0.f)", self._centered(x)[1])
            out = self._pointwise(POINTWISE["sqrt"], out) if name == "std" else out
        elif name == "linalg_vector_norm" and given["ord"] == 2:
            out = self._pointwise("SQRT({0})", self._reduce("sum", self._pointwise("{0} * {0}", x)))
        elif name in ("argmax", "argmin"):
            out = self._first(REDUCTIONS["amax" if name == "argmax" else "amin"], x)[1]
        elif name in REDUCTIONS:
            out = self._mean(x) if name == "mean" else self._reduce(REDUCTIONS[name], x)
        else:
            raise NotRows(name)
        return out if given.get("keepdim") else self._add("flat", "{0}", [out])

    def _sizes_of(self, value: Value) -> list[list[str]]:
        """The sizes that a tensor of this value can have."""
        cols, rows = self.full[-1], self.full[:-1]
        return {
            "full": [self.full],
            "col": [[*rows, "1"]],
            "flat": [rows],
            "row": [[*["1"] * axes, cols] for axes in range(len(self.full))],
        }[value.kind]


def is_place(value: Value) -> bool:
    """Whether a value is an input of places."""
    return value.place or (value.kind == "flat" and value.operands[0].place)


def sizes_of(node: torch.fx.Node) -> list[str]:
    """A tensor's sizes as text: no comparison of symbols, which would become a condition."""
    return [
        str(size.node.expr if isinstance(size, torch.SymInt) else size) for size in node.meta["val"].shape
    ]


def number(value: Any) -> str:
    """A number as a float of C++."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise NotRows("an operand is no number")
    text = format(float(value), ".9g")
    return f"{text}f" if any(mark in text for mark in ".e") else f"{text}.f"
