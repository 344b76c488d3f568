"""Lets kernels that Inductor generated for any size be compiled anew for the sizes that they are called with."""

from __future__ import annotations

import re
from pathlib import Path

_CLASS = Path(__file__).parent / "sandboxed" / "sized_kernel.py"
_KERNEL = re.compile(
    r"^(\w+ = )async_compile\.triton(\('\w+', '''\n(.*?)^'''), device_str='cuda'(\)$)",
    re.MULTILINE | re.DOTALL,
)
#: Pointers, then sizes, then constants, of which Inductor itself has set none.
_HEAD = re.compile(
    r"^def \w+\(((?:\w+_ptr\d*, )+(?:ks\d+, |\w+numel, )*\w+numel)(?:, \w+ ?: ?tl\.constexpr)*\):$",
    re.MULTILINE,
)
#: A division of an index by something that has a size in it. Multiplications cost next to nothing.
_DIVISION = re.compile(r"(?://|%|div_floor_integer).*\bks\d")


def per_size(module: str) -> str:
    """Inductor's module with a `SizedKernel`, of `with_class`, for each kernel that is faster if it knows more about sizes.

    Two groups: kernels that divide indices by sizes (on an H200 two 3-D convolutions with a GroupNorm, a segmented sum
    and a recurrence take 0.37 to 0.72 times as long), and kernels with a size that Inductor could not mark as a multiple
    of 16.
    """

    def sized(match: re.Match[str]) -> str:
        source = match[3]
        head = _HEAD.search(source)
        if head is None or "'constants': {}" not in source:
            return match[0]
        if _DIVISION.search(source):
            return f"{match[1]}SizedKernel{match[2]}{match[4]}"
        multiples = _unmarked(head[1].split(", "), source)
        found = multiples and "'configs': [{" in source
        return f"{match[1]}SizedKernel{match[2]}, {multiples}{match[4]}" if found else match[0]

    return _KERNEL.sub(sized, module)


def _unmarked(args: list[str], source: str) -> tuple[str, ...]:
    """The sizes among a kernel's arguments that are neither constants in its text nor marked as multiples of 16."""
    return tuple(
        name
        for place, name in enumerate(args)
        if "_ptr" not in name
        and f"({place},): [['tt.divisibility'" not in source
        and not re.search(rf"^    {name} = \d+$", source, re.MULTILINE)
    )


def with_class(module: str) -> str:
    """A module with the class that `per_size` uses; unchanged if it does not."""
    if " = SizedKernel('" not in module:
        return module
    return _CLASS.read_text(encoding="utf-8").partition("annotations\n")[2] + f"\n\n{module}"
