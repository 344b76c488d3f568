"""`TUNABLES`: reads the constants of a candidate that the tuner may choose, and writes variants with chosen values.

    TUNABLES = {"BLOCK": [64, 128, 256], "UNROLL": [1, 2, 4]}
    BLOCK = 128
    UNROLL = 2

The file is only parsed here, never run. Only a module constant that is assigned a literal exactly once is replaced, so a
variant differs from its parent only in these values.
"""

from __future__ import annotations

import ast
import itertools
import json
import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

MAX_NAMES = 8
MAX_VALUES = 32
_MAX_TEXT = 64
_MAX_INTEGER = 2**63

Value = int | float | str | bool
Setting = Mapping[str, Value]


class NotTunable(ValueError):
    """The declaration is unusable; the message tells the proposer why."""


@dataclass(frozen=True)
class Tunables:
    """The tunable constants of a candidate.

    Attributes:
        choices: allowed values by name, in declaration order.
        chosen: the file's current values.
    """

    choices: Mapping[str, tuple[Value, ...]]
    chosen: Setting

    @property
    def count(self) -> int:
        """Number of possible settings."""
        return math.prod(len(values) for values in self.choices.values())

    def settings(self, most: int, generator: random.Random) -> list[dict[str, Value]]:
        """All settings, or `most` of them drawn without replacement; the file's current setting always comes first."""
        names = list(self.choices)
        own = {name: self.chosen[name] for name in names}
        if self.count <= most:
            every = [
                dict(zip(names, values, strict=True)) for values in itertools.product(*self.choices.values())
            ]
        else:  # draw by index: the product of 8 names with 32 values each is too large to enumerate
            every = [self._numbered(number) for number in sorted(_distinct(generator, self.count, most))]
        return [own, *(one for one in every if setting_key(one) != setting_key(own))][: max(1, most)]

    def _numbered(self, number: int) -> dict[str, Value]:
        found: dict[str, Value] = {}
        for name, values in self.choices.items():
            number, place = divmod(number, len(values))
            found[name] = values[place]
        return found


def _distinct(generator: random.Random, count: int, most: int) -> set[int]:
    found: set[int] = set()
    while len(found) < most:
        found.add(generator.randrange(count))
    return found


def setting_key(setting: Setting) -> str:
    """A text key for a setting that distinguishes 1, 1.0 and True."""
    return json.dumps(dict(setting), sort_keys=True)


def declared(source: str) -> Tunables | None:
    """The declaration of a candidate; None if it has none.

    Raises:
        NotTunable: if the declaration is unusable.
    """
    tree = _parsed(source)
    found = [node for node in tree.body if "TUNABLES" in _targets(node)]
    if not found:
        return None
    if len(found) > 1 or not isinstance(found[0], ast.Assign | ast.AnnAssign) or found[0].value is None:
        raise NotTunable("TUNABLES must be assigned once, at module level")
    try:
        raw = ast.literal_eval(found[0].value)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        raise NotTunable("TUNABLES must be a literal: a dict of lists of plain values") from None
    if not isinstance(raw, dict) or not 1 <= len(raw) <= MAX_NAMES:
        raise NotTunable(f"TUNABLES must be a dict of 1 to {MAX_NAMES} names")
    constants = _constants(tree)
    choices: dict[str, tuple[Value, ...]] = {}
    chosen: dict[str, Value] = {}
    for name, values in raw.items():
        if not isinstance(name, str) or name not in constants:
            shown = repr(name)[:_MAX_TEXT] if isinstance(name, str) else type(name).__name__
            raise NotTunable(
                f"TUNABLES names {shown}, which is no literal constant of the module, assigned once"
            )
        if not isinstance(values, list | tuple) or not 1 <= len(values) <= MAX_VALUES:
            raise NotTunable(f"TUNABLES[{name!r}] must be a list of 1 to {MAX_VALUES} values")
        for value in values:
            if not _plain(value):
                raise NotTunable(
                    f"TUNABLES[{name!r}] holds {type(value).__name__}; numbers and short texts only"
                )
        chosen[name] = constants[name][1]
        choices[name] = tuple({setting_key({name: value}): value for value in values}.values())
    return Tunables(choices, chosen)


def substituted(source: str, setting: Setting) -> str:
    """The candidate with new constants; every other character stays unchanged.

    Raises:
        NotTunable: if a name is not a constant of the module, or could not be replaced.
    """
    tree = _parsed(source)
    constants = _constants(tree)
    lines = source.encode().splitlines(keepends=True)  # the parser counts columns in bytes
    begins = [0, *itertools.accumulate(len(line) for line in lines)]
    edits = []
    for name, value in setting.items():
        if name not in constants or not _plain(value):
            raise NotTunable(f"{name} is no literal constant of the module")
        node = constants[name][0]
        if node.end_lineno is None or node.end_col_offset is None:
            raise NotTunable(f"{name} has no place in the file")
        begin = begins[node.lineno - 1] + node.col_offset
        edits.append((begin, begins[node.end_lineno - 1] + node.end_col_offset, repr(value)))
    text = source.encode()
    for begin, end, new in sorted(edits, reverse=True):
        text = text[:begin] + new.encode() + text[end:]
    made = text.decode()
    now = _constants(_parsed(made))
    if any(name not in now or now[name][1] != value for name, value in setting.items()):
        raise NotTunable("the constants could not be replaced")
    return made


def _constants(tree: ast.Module) -> dict[str, tuple[ast.expr, Value]]:
    """Names that the module assigns exactly once, to a literal, with the expression and its value."""
    counts: dict[str, int] = {}
    for node in ast.walk(tree):
        for name in _bound(node):
            counts[name] = counts.get(name, 0) + 1
    found: dict[str, tuple[ast.expr, Value]] = {}
    for node in tree.body:
        targets = _targets(node)
        if len(targets) != 1 or counts.get(targets[0]) != 1:
            continue
        expression = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        value = _literal(expression)
        if expression is not None and value is not None:
            found[targets[0]] = (expression, value)
    return found


def _literal(expression: ast.expr | None) -> Value | None:
    if expression is None:
        return None
    try:  # not a node type check: a negative number is a unary operator on a constant
        value = ast.literal_eval(expression)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
    return value if _plain(value) else None


def _plain(value: object) -> bool:
    if isinstance(value, str):
        return len(value) <= _MAX_TEXT and value.isprintable()
    if isinstance(value, int):  # Python refuses to convert integers of thousands of digits to text
        return abs(value) < _MAX_INTEGER
    return isinstance(value, float) and math.isfinite(value)


def _targets(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.Assign):
        return [target.id for target in node.targets if isinstance(target, ast.Name)]
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return [node.target.id]
    return []


def _bound(node: ast.AST) -> Iterator[str]:
    """Names that a node binds anywhere in the file; to be safe, local variables of the same name count too."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
        yield node.id
    elif isinstance(node, ast.Global):
        yield from node.names


def _parsed(source: str) -> ast.Module:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise NotTunable(f"the file does not parse: {error}") from None
