"""Names for what a capture holds, and the form of forward's return value, as Python text."""

from __future__ import annotations

import keyword
import re
from collections.abc import Sequence

from agent.compiler.capture import Variant
from agent.errors import ProposalFailed

_RESERVED = frozenset(
    {"torch", "nn", "F", "math", "ctypes", "triton", "tl", "model", "self", "super", "aten", "kernels"}
)
#: What generated code calls its buffers, indices and sizes.
_INDUCTORS = re.compile(r"(buf|arg|tmp|s|u|x|r|ks|i)\d+\w*")


def variable_names(variant: Variant) -> dict[str, str]:
    """A readable, unique name for each symbol, argument and tensor of the module."""
    taken = set(_RESERVED)
    names: dict[str, str] = {}

    def claim(key: str, wanted: str) -> None:
        word = re.sub(r"\W+", "_", wanted).strip("_") or "value"
        if word[0].isdigit():
            word = f"_{word}"
        # In front, since whatever follows a number leaves it one of Inductor's own names.
        if _INDUCTORS.fullmatch(word):
            word = f"given_{word}"
        while word in taken or keyword.iskeyword(word):
            word += "_"
        taken.add(word)
        names[key] = word

    # Those of arguments are claimed first, so that nearly all keep the names that `forward` has for them.
    for index, value in enumerate(variant.arguments):
        claim(f"argument:{index}", value.name)
    for symbol in variant.symbols:
        claim(
            f"symbol:{symbol.name}",
            symbol.name if symbol.multiple == 1 else f"{symbol.name}_by_{symbol.multiple}",
        )
    for index, value in enumerate(variant.state):
        claim(f"state:{index}", value.name)
    return names


def rebuild(structure: object, tensors: Sequence[str]) -> str:
    """Python text of forward's return value from the tensors that make it up."""
    if structure is None:
        return "None"
    if isinstance(structure, int):
        return tensors[structure]
    if isinstance(structure, list) and len(structure) == 2 and isinstance(structure[1], list):
        kind, items = structure
        if kind == "dict":
            pairs = [f"{key!r}: {rebuild(item, tensors)}" for key, item in items if isinstance(key, str)]
            return "{" + ", ".join(pairs) + "}"
        texts = [rebuild(item, tensors) for item in items]
        if kind == "list":
            return f"[{', '.join(texts)}]"
        if kind == "tuple":
            return f"({texts[0]},)" if len(texts) == 1 else f"({', '.join(texts)})"
    raise ProposalFailed("the captured form of the return value is not known")
