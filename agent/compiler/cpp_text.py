"""Turns one C++ kernel as Inductor prints it into text that a person would want to edit.

What changes is spelling, never arithmetic: casts between integer types that are already equal go away, vector-width
bounds get a name, blocks that hold only another block are opened, parameters take the names of what is passed, and a
parallel region says from how much work on it is worth the threads. Everything works on text that is never run here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from agent.errors import ProposalFailed

PREAMBLE = """\
#include <torch/csrc/inductor/cpp_prefix.h>

namespace vec = at::vec;

// The largest multiple of STEP up to n: where the vector loop ends and the ragged rest begins.
template <int64_t STEP> static inline int64_t whole(int64_t n) { return c10::div_floor_integer(n, STEP) * STEP; }
static inline int64_t floor_div(int64_t a, int64_t b) { return c10::div_floor_integer(a, b); }
"""

PARALLEL_ELEMENTS = 32 * 1024
"""Loop iterations from which on starting threads pays: a fork and join costs a few microseconds, as long as a core
takes for about this many additions on vectors."""

PARALLEL_ELEMENTS_HEAVY = 8 * 1024
"""The same for kernels that call exp, erf, tanh and the like."""

_HEAVY = re.compile(r"\b(exp|expm1|erf|erfc|tanh|log|log1p|log2|sin|cos|pow|sigmoid|lgamma)\(")
_SIGNATURE = re.compile(r'extern "C"\s+void\s+kernel\((?P<parameters>[^)]*)\)\s*\{', re.DOTALL)
_CAST = "static_cast<int64_t>("
_INDEX_TOKENS = re.compile(r"(?:\d+L?|x\d+(?:_\w+)?|ks\d+|whole<\d+>|floor_div|[-+*(),\s])+")
_FOR = re.compile(r"for\s*\(\s*int64_t (\w+)=.*?;\s*\1\s*<\s*(?P<bound>.+?);")


@dataclass(frozen=True)
class CppKernel:
    """A kernel ready for printing.

    Attributes:
        name: the exported function.
        parameters: (C type, name) in the order of the call.
        text: the whole function.
        own: positions of Inductor's parameters that became the kernel's own memory.
    """

    name: str
    parameters: tuple[tuple[str, str], ...]
    text: str
    own: frozenset[int] = frozenset()


def tidy(
    name: str,
    source: str,
    renames: Mapping[str, str],
    comment: Sequence[str] = (),
    *,
    distinct: bool = False,
    scratch: Mapping[int, tuple[str, ...]] = MappingProxyType({}),
) -> CppKernel:
    """Rewrite one kernel.

    Args:
        name: what to call the function.
        source: Inductor's text: an include, then `extern "C" void kernel(...) {...}`.
        renames: new names for parameters; names that the body already uses are left as they were.
        comment: lines to put above the function.
        distinct: no two pointers of any call are of the same memory. Then the compiler may be told so, and takes what
            depends on a row only (a division, a square root) out of the loop over the row.
        scratch: positions of pointers that become memory of the kernel's own, with the factors of their length. A
            length must be made of the kernel's sizes; where it is not, the parameter stays.

    Raises:
        ProposalFailed: if the text is not a kernel of the expected form.
    """
    match = _SIGNATURE.search(source)
    if match is None:
        raise ProposalFailed("a generated C++ kernel does not have the expected signature")
    parameters = [_parameter(text) for text in match["parameters"].split(",")]
    body = source[match.end() :].rstrip()
    if not body.endswith("}"):
        raise ProposalFailed("a generated C++ kernel does not end with its closing brace")
    body = _drop_division_check(body[:-1])
    body = _plain_indices(body)
    chosen = _usable_renames(renames, [parameter for _, parameter in parameters], body)
    for old, new in chosen.items():
        body = re.sub(rf"\b{old}\b", new, body)
    threshold = PARALLEL_ELEMENTS_HEAVY if _HEAVY.search(body) else PARALLEL_ELEMENTS
    sizes = {chosen.get(parameter, parameter) for kind, parameter in parameters if "*" not in kind}
    tree = _open_blocks(_parse(body))
    _limit_threads(tree, sizes, threshold)
    everything = [(kind, chosen.get(parameter, parameter)) for kind, parameter in parameters]
    own = {
        position: _length(factors, sizes)
        for position, factors in scratch.items()
        if _length(factors, sizes) is not None
    }
    memory = [
        line for position, length in own.items() for line in _own_memory(*everything[position], str(length))
    ]
    final = tuple(parameter for position, parameter in enumerate(everything) if position not in own)
    mark = " __restrict__" if distinct else ""
    head = _head(name, [(kind + mark if "*" in kind else kind, parameter) for kind, parameter in final])
    lines = [*(f"// {line}" for line in comment), head, *memory, *_print(tree, 1), "}"]
    return CppKernel(name, final, "\n".join(lines), frozenset(own))


def _length(factors: Sequence[str], sizes: set[str]) -> str | None:
    """The number of elements as C++ text, or None if it is not a product of the kernel's sizes."""
    kept = [factor for factor in factors if factor != "1"] or ["1"]
    words = {word for factor in kept for word in re.findall(r"[A-Za-z_]\w*", factor)}
    if not words <= sizes or not all(re.fullmatch(r"[\w\s*+()-]+", factor) for factor in kept):
        return None
    return " * ".join(f"({factor})" if re.search(r"[-+]", factor) else factor for factor in kept)


def _own_memory(kind: str, name: str, length: str) -> list[str]:
    element = kind.removesuffix("*").strip()
    return [
        f"  const std::unique_ptr<{element}[]> {name}_memory(new {element}[{length}]);",
        f"  {element}* const {name} = {name}_memory.get();",
    ]


def _parameter(text: str) -> tuple[str, str]:
    match = re.fullmatch(r"\s*((?:const )?[\w:]+(?:<[\w:]+>)?\s?\*?)\s*(\w+)\s*", text)
    if match is None:
        raise ProposalFailed(
            f"a generated C++ kernel has a parameter of an unexpected form: {text.strip()[:80]}"
        )
    return match[1].strip(), match[2]


def _head(name: str, parameters: Sequence[tuple[str, str]]) -> str:
    """The signature, wrapped at 110 columns."""
    lines = [f'extern "C" void {name}(']
    for position, (kind, parameter) in enumerate(parameters):
        piece = f"{kind} {parameter}" + ("," if position + 1 < len(parameters) else ") {")
        if len(lines[-1]) + len(piece) + 1 > 110:
            lines.append("    ")
        lines[-1] += piece if lines[-1].endswith(("(", "    ")) else f" {piece}"
    return "\n".join(lines)


def _drop_division_check(body: str) -> str:
    """Remove the flag for integer division by zero where nothing divides integers."""
    kept = [
        line
        for line in body.splitlines()
        if "inductor_cpu_integer_div_error" not in line
        and "inductor_cpu_throw_if_integer_div_error" not in line
    ]
    divides = re.search(r"\b(floor_divide_integral|div_integral|remainder_integral|\w*_integral)\(", body)
    return body if divides else "\n".join(kept)


def _plain_indices(body: str) -> str:
    """Drop casts and suffixes that change no type: every index and size here is an int64_t (a long on Linux)."""
    lines = []
    for line in body.splitlines():
        line = re.sub(r"C10_(?:UN)?LIKELY\((.*)\)\)$", r"\1)", line)
        line = line.replace("c10::div_floor_integer(", "floor_div(").replace("at::vec::", "vec::")
        if "std::min" not in line and "std::max" not in line:
            line = _strip_casts(line)
            line = _name_whole_vectors(line)
            line = re.sub(r"(?<![\w.])(\d{1,4})L\b", r"\1", line)
        lines.append(line)
    return "\n".join(lines)


def _strip_casts(line: str) -> str:
    position = 0
    while (start := line.find(_CAST, position)) >= 0:
        end = _closing(line, start + len(_CAST) - 1)
        if end < 0:
            break
        inner = _strip_casts(line[start + len(_CAST) : end])
        typed = re.search(r"auto \w+ =\s*$", line[:start])  # here the cast decides the variable's type
        if typed or not _INDEX_TOKENS.fullmatch(inner):
            line = line[: start + len(_CAST)] + inner + line[end:]
            position = start + len(_CAST) + len(inner)
            continue
        before, after = line[:start].rstrip()[-1:], line[end + 1 :].lstrip()[:1]
        enclosed = before in "(,[=<" and after in "),];<"
        simple = re.fullmatch(r"[\w]+|(?:whole<\d+>|floor_div)\([\w\s,+*]*\)", inner)
        replacement = inner if simple or enclosed else f"({inner})"
        line = line[:start] + replacement + line[end + 1 :]
        position = start
    return line


def _closing(text: str, opening: int) -> int:
    """Index of the parenthesis that closes the one at `opening`, or -1."""
    depth = 0
    for index in range(opening, len(text)):
        depth += {"(": 1, ")": -1}.get(text[index], 0)
        if depth == 0:
            return index
    return -1


def _name_whole_vectors(line: str) -> str:
    """`16L*(floor_div(n, 16L))` becomes `whole<16>(n)`, and with a minus its negative."""
    while True:
        match = re.search(r"(\(-)?(?<!\d)(\d+)L?(\))?\*\((?=floor_div\()", line)
        if match is None or bool(match[1]) != bool(match[3]):
            return line
        call = match.end()
        end = _closing(line, call + len("floor_div"))
        inner = line[call + len("floor_div(") : end]
        operand, _, divisor = inner.rpartition(",")
        if divisor.strip().removesuffix("L") != match[2] or line[end + 1 : end + 2] != ")":
            return line
        sign = "-" if match[1] else ""
        line = f"{line[: match.start()]}{sign}whole<{match[2]}>({operand.strip()}){line[end + 2 :]}"


def _usable_renames(renames: Mapping[str, str], parameters: Sequence[str], body: str) -> dict[str, str]:
    used = set(re.findall(r"[A-Za-z_]\w*", body)) | set(parameters) | _CPP_WORDS
    chosen: dict[str, str] = {}
    for old in parameters:
        new = renames.get(old)
        if new is None:
            continue
        while new in used and new != old:
            new += "_"
        used.add(new)
        chosen[old] = new
    return chosen


@dataclass
class _Block:
    """Lines and nested blocks; `header` says that the line before belongs to the block (a loop, an if, a lambda)."""

    items: list[str | _Block] = field(default_factory=list)
    header: bool = False


def _parse(body: str) -> _Block:
    root = _Block()
    stack = [root]
    for raw in body.splitlines():
        line = raw.strip()
        if not line:
            continue
        if line == "{":
            previous = stack[-1].items[-1] if stack[-1].items else ""
            headed = isinstance(previous, str) and bool(previous) and not previous.endswith((";", "}"))
            block = _Block(header=headed)
            stack[-1].items.append(block)
            stack.append(block)
        elif line == "}" and len(stack) > 1:
            stack.pop()
        elif line.count("{") != line.count("}"):
            raise ProposalFailed(f"a generated C++ kernel has a line of an unexpected form: {line[:80]}")
        else:
            stack[-1].items.append(line)
    if len(stack) != 1:
        raise ProposalFailed("a generated C++ kernel has unbalanced braces")
    return root


def _open_blocks(block: _Block) -> _Block:
    """Open bare blocks that declare nothing, or that are alone in their parent."""
    items: list[str | _Block] = []
    for item in block.items:
        if isinstance(item, str):
            if item != "int tid = omp_get_thread_num();" or _mentions(block, "tid"):
                items.append(item)
            continue
        inner = _open_blocks(item)
        declares = any(
            isinstance(line, str) and not line.startswith(("#", "for", "if", "//")) for line in inner.items
        )
        if not inner.header and (not declares or len(block.items) == 1):
            items.extend(inner.items)
        else:
            items.append(inner)
    return _Block(items, block.header)


def _mentions(block: _Block, word: str) -> bool:
    lines = [line for line in _print(block, 0) if not line.strip().startswith("int tid")]
    return any(re.search(rf"\b{word}\b", line) for line in lines)


def _limit_threads(block: _Block, sizes: set[str], threshold: int) -> None:
    """Give each parallel region an `if` clause from the largest loop nest inside it."""
    for index, item in enumerate(block.items):
        if isinstance(item, _Block):
            _limit_threads(item, sizes, threshold)
        elif re.fullmatch(r"#pragma omp parallel(?: num_threads\(\d+\))?", item) and index + 1 < len(
            block.items
        ):
            region = block.items[index + 1]
            nests = _nests(region, sizes) if isinstance(region, _Block) else []
            if nests:
                work = max(nests, key=lambda nest: (len(nest), sum(map(len, nest))))
                product = " * ".join(f"({bound})" if re.search(r"[-+*]", bound) else bound for bound in work)
                block.items[index] = f"{item} if ({product} >= {threshold})"


def _nests(block: _Block, sizes: set[str]) -> list[list[str]]:
    """The bounds of each nest of loops, as far as they are made of sizes and numbers."""
    found: list[list[str]] = []
    for index, item in enumerate(block.items):
        if not isinstance(item, _Block):
            continue
        inner = _nests(item, sizes)
        before = block.items[index - 1] if item.header and index else ""
        match = _FOR.match(before) if isinstance(before, str) else None
        if match is None:
            found += inner
            continue
        words = set(re.findall(r"[A-Za-z_]\w*", match["bound"]))
        bound = [match["bound"]] if words <= sizes | {"whole", "floor_div"} else []
        found += [bound + nest for nest in inner] or [bound]
    return [nest for nest in found if nest]


def _print(block: _Block, depth: int) -> list[str]:
    pad = "  " * depth
    lines: list[str] = []
    for item in block.items:
        if isinstance(item, str):
            lines.append(item if item.startswith("#") else pad + item)
        elif item.header and lines and not lines[-1].startswith("#"):
            lines[-1] += " {"
            lines += [*_print(item, depth + 1), pad + "}"]
        else:
            lines += [pad + "{", *_print(item, depth + 1), pad + "}"]
    return lines


_CPP_WORDS = frozenset(
    "alignas alignof and asm auto bool break case catch char class const constexpr continue decltype default delete do "
    "double dynamic_cast else enum explicit export extern false float for friend goto if inline int long mutable "
    "namespace new noexcept not nullptr operator or private protected public register reinterpret_cast return short "
    "signed sizeof static static_cast struct switch template this throw true try typedef typeid typename union unsigned "
    "using virtual void volatile while xor std at vec c10 whole floor_div tid omp".split()
)
