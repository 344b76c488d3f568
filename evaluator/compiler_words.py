"""Reduces a compiler's output to one line: its message and the line of code that it is about.

Compilers print the message last (Triton, under the lines of the kernel), in the middle (ninja, Inductor, under the
command), or first. All of it is untrusted text: it is shortened, and terminal control characters are removed.
"""

from __future__ import annotations

import re

_LONGEST = 400
#: Triton prints the twelve lines of the kernel before the one it is about.
_MOST_EXCERPT = 14
_AT = re.compile(r"(?:.*: )?at (\d+):\d+:")
_DEF = re.compile(r"\s*def (\w+)\(")
#: ``kernel.cu(12): error: ...`` (nvcc, NVRTC), ``main.cpp:12:5: error: ...`` (g++, clang).
_NATIVE = re.compile(
    r"(?:^|[\s'\"])(?:[^\s:()'\"]*/)?([\w.+<>-]+(?:\(\d+\)|:\d+(?::\d+)?): (?:fatal |internal |catastrophic )?error\b.*)"
)
_OTHER = re.compile(
    r"\berror\b\s*:|\bfatal\b\s*:|undefined (?:reference|symbol)|cannot find -l", re.IGNORECASE
)
#: Lines that say only that something went wrong, or which command did.
_EMPTY = re.compile(
    r"\s*$|backend=.* raised:|(?:RuntimeError: |CppCompileError: |CUDACompileError: )?(?:C\+\+ compile error|Kernel compilation failed:)$"
    r"|PTXAS error: Internal Triton PTX codegen error|`ptxas` stderr:|Command:$|Output:$"
)
_COLOR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def headline(text: str) -> str:
    """The most helpful line of a compiler's output: the message of the innermost error, and where it is.

    Args:
        text: the compiler's output, with the errors that caused it after it.
    """
    lines = [line.rstrip() for line in printable(text).splitlines()]
    native = (found[1] for line in lines if (found := _NATIVE.search(line)))
    told = [line.strip() for line in lines if not _EMPTY.match(line)]
    other = (line for line in told if _OTHER.search(line))
    return (_triton(lines) or next(native, "") or next(other, "") or "".join(told[:1]))[:_LONGEST]


def _triton(lines: list[str]) -> str:
    """The last message under an excerpt of a kernel: a helper's error comes after those of the kernels that call
    it.
    """
    found = ""
    for number, line in enumerate(lines):
        place = _AT.fullmatch(line)
        excerpt = lines[number + 1 : number + 1 + _MOST_EXCERPT]
        carets = [at for at, one in enumerate(excerpt) if one.strip() == "^"]
        if place is None or not carets or not carets[0]:
            continue
        said = next((one.strip() for one in lines[number + 2 + carets[0] :] if one.strip()), "")
        if said and not _AT.fullmatch(said) and not said.startswith(("File ", "Traceback ")):
            kernel = _DEF.match(excerpt[0])
            where = f"line {place[1]} of {kernel[1] if kernel else 'the kernel'}"
            found = f"{where}: {said} (`{excerpt[carets[0] - 1].strip()}`)"
    return found


def printable(text: str) -> str:
    """Untrusted text reduced to printable characters, line breaks and tabs."""
    return "".join(
        letter if letter in "\n\t" or letter.isprintable() else "?" for letter in _COLOR.sub("", text)
    )
