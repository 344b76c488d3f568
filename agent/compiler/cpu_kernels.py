"""The CPU kernels of a capture as one C++ source that `load_inline` compiles without torch's large headers."""

from __future__ import annotations

import ast
import hashlib
import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from agent.compiler.calls import rewrite, scratch_buffers
from agent.compiler.capture import Capture
from agent.compiler.cpp_text import PREAMBLE, CppKernel, tidy
from agent.compiler.library import Library, Printer, function_name, fused_words, names_of_arguments
from agent.errors import ProposalFailed

FLAGS = ("-O3", "-DNDEBUG", "-fopenmp", "-fno-trapping-math", "-ffp-contract=off", "-fno-tree-loop-vectorize")
"""What Inductor compiles its kernels with, as far as it changes code: no contraction, so that results are those of
separate operations, and no second vectorization of loops that are vectors already."""

CAPABILITIES = {"AVX512": "avx512", "AVX2": "avx2"}
VECTOR_BYTES = {"AVX512": 64, "AVX2": 32}


@dataclass(frozen=True)
class RawKernel:
    """A kernel as it stands in Inductor's module."""

    name: str
    source: str


def library(capture: Capture) -> Library:
    """Collect, rename and print the kernels of all variants.

    Raises:
        ProposalFailed: if a kernel has an unexpected form, or the vectors are of an instruction set that is not known.
    """
    printed: dict[str, CppKernel] = {}
    printers: list[dict[str, Printer]] = []
    scratches: list[frozenset[str]] = []
    for index, variant in enumerate(capture.variants):
        suffix = f"_v{index + 1}" if len(capture.variants) > 1 else ""
        mine: dict[str, Printer] = {}
        raw = raw_kernels(variant.module)
        # A first pass with printers that only name the kernels finds out what each is called with.
        body = rewrite(variant, {kernel.name: _plain for kernel in raw}, "cpu")
        unshared = scratch_buffers(body)
        mine_own: set[str] = set()
        for position, kernel in enumerate(raw):
            name = function_name(kernel.name, position, len(raw)) + suffix
            mine_calls = [call for call in body.calls if call.kernel == kernel.name]
            distinct = all(len(set(call.base_names)) == len(call.base_names) for call in mine_calls)
            renames = names_of_arguments(_parameter_names(kernel), mine_calls)
            comment = f"Computes, in one kernel: {fused_words(kernel.name)}."
            arguments = mine_calls[0].arguments if len(mine_calls) == 1 else ()
            scratch = {i: body.allocations[text][0] for i, text in enumerate(arguments) if text in unshared}
            tidied = tidy(name, kernel.source, renames, [comment], distinct=distinct, scratch=scratch)
            mine_own |= {arguments[position] for position in tidied.own}
            printed[name] = tidied
            mine[kernel.name] = _caller(tidied)
        printers.append(mine)
        scratches.append(frozenset(mine_own))
    if not printed:
        return Library((), (), frozenset(), tuple(printers), tuple(scratches))
    cpp_source = _cpp_source(printed.values())
    return Library(
        imports=("import ctypes", "from torch.utils.cpp_extension import load_inline"),
        parts=(cpp_source, _loader(printed.values(), _capability(capture), cpp_source)),
        names=frozenset({"CPP_SOURCE", "kernels", "MADE_FOR", "build", *printed}),
        printers=tuple(printers),
        scratch=tuple(scratches),
        guard="kernels is not None",
    )


def raw_kernels(module: str) -> list[RawKernel]:
    """The `name = async_compile.cpp_pybinding([...], '''...''')` of a module, in order."""
    found = []
    for node in ast.parse(module).body:
        if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)):
            continue
        function = ast.unparse(node.value.func)
        if not function.startswith("async_compile."):
            continue
        target, source = node.targets[0], node.value.args[-1]
        if function != "async_compile.cpp_pybinding" or not isinstance(target, ast.Name):
            raise ProposalFailed(f"the compiler made a kernel with {function}, which is not C++ for the CPU")
        if not (isinstance(source, ast.Constant) and isinstance(source.value, str)):
            raise ProposalFailed("a generated kernel is not a plain string")
        found.append(RawKernel(target.id, source.value))
    return found


def _parameter_names(kernel: RawKernel) -> list[str]:
    match = re.search(r"kernel\(([^)]*)\)", kernel.source)
    return [text.split()[-1].lstrip("*") for text in match[1].split(",")] if match else []


def _plain(arguments: Sequence[str]) -> str:
    return f"kernel({', '.join(arguments)})"


def _caller(kernel: CppKernel) -> Printer:
    pointers = ["*" in kind for kind, _ in kernel.parameters]

    def call(arguments: Sequence[str]) -> str:
        passed = [argument for position, argument in enumerate(arguments) if position not in kernel.own]
        if len(passed) != len(pointers):
            raise ProposalFailed(
                f"{kernel.name} takes {len(pointers)} arguments and is called with {len(passed)}"
            )
        texts = [
            f"{argument}.data_ptr()" if pointer else argument
            for argument, pointer in zip(passed, pointers, strict=True)
        ]
        line = f"kernels.{kernel.name}({', '.join(texts)})"
        if len(line) <= 104:
            return line
        rows = textwrap.wrap(", ".join(texts) + ",", 100, break_on_hyphens=False)
        return "\n".join([f"kernels.{kernel.name}(", *(f"    {row}" for row in rows), ")"])

    return call


def _capability(capture: Capture) -> str:
    if capture.capability not in CAPABILITIES:
        raise ProposalFailed(
            f"no standalone form for kernels made for {capture.capability or 'an unknown CPU'}"
        )
    return capture.capability


def _cpp_source(kernels: Iterable[CppKernel]) -> str:
    texts = [kernel.text for kernel in kernels]
    body = PREAMBLE + "\n" + "\n\n".join(texts) + "\n"
    if '"""' in body or body.rstrip().endswith("\\"):
        raise ProposalFailed("a generated kernel contains a triple quote")
    return f'CPP_SOURCE = r"""\n{body}"""'


def _loader(kernels: Iterable[CppKernel], capability: str, cpp_source: str) -> str:
    # Candidates that end up in one file, or share an extension cache, must not overwrite each other.
    digest = hashlib.sha256(cpp_source.encode()).hexdigest()[:8]
    types = {"float": "ctypes.c_float", "double": "ctypes.c_double"}
    rows = []
    for kernel in kernels:
        kinds = [
            "ctypes.c_void_p" if "*" in kind else types.get(kind.removeprefix("const "), "ctypes.c_int64")
            for kind, _ in kernel.parameters
        ]
        runs: list[str] = []
        for kind in dict.fromkeys(kinds):
            runs.append(f"[{kind}] * {kinds.count(kind)}")
        ordered = [kind for kind in dict.fromkeys(kinds) for _ in range(kinds.count(kind))]
        text = " + ".join(runs) if ordered == kinds else f"[{', '.join(kinds)}]"
        rows.append(f"    library.{kernel.name}.argtypes = {text}\n    library.{kernel.name}.restype = None")
    flags = [f'"{flag}"' for flag in (*FLAGS, "-march=native", f"-DCPU_CAPABILITY_{capability}")]
    return "\n".join(
        [
            f'MADE_FOR = "{capability}"  # the width of the vectors in the loops above is that of this instruction set',
            "",
            "",
            "def build():",
            '    """Compile the kernels; None on a CPU whose vectors have another width."""',
            "    if torch.backends.cpu.get_cpu_capability() != MADE_FOR:",
            "        return None",
            "    path = load_inline(",
            f'        "generated_kernels_{digest}",',
            "        cpp_sources=CPP_SOURCE,",
            "        is_python_module=False,",
            "        no_implicit_headers=True,",
            "        extra_cflags=[",
            *textwrap.wrap(
                ", ".join(flags) + ",",
                100,
                initial_indent=" " * 12,
                subsequent_indent=" " * 12,
                break_on_hyphens=False,
            ),
            "        ],",
            '        extra_ldflags=["-fopenmp"],',
            "    )",
            "    library = ctypes.CDLL(path)",
            *rows,
            "    return library",
            "",
            "",
            "kernels = build()",
        ]
    )
