"""One call of `load_inline` as plain data, with the rules for which calls are compiled.

The compile role records what a candidate requests and applies the rules, for a good error message. The referee
applies them again, because the record comes from a process that the candidate shares and may be a lie. A lie gains
nothing: a candidate that names other sources gets what those compile to.

The rules on sources explain; they do not protect. A compiler reads what its sandbox shows, which holds no secret,
and source can hide a file's name from any scan. The sandbox protects, and the list of files that the compiler says
it read (:mod:`evaluator.building.compiler`).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

MAX_SOURCE_BYTES = 600_000
_MAX_SOURCES = 64
_MAX_FLAGS = 64
_MAX_FLAG_CHARACTERS = 200
_MAX_FUNCTIONS = 256

_COMPILE_FLAG = re.compile(
    r"-(O[0-3s]|Ofast|march=[\w.+-]+|mtune=[\w.+-]+|m[\w=.,-]+|std=[\w+]+"
    # Excludes flags that load code into the compiler, contact a module server, or write and read profiles and
    # dumps.
    r"|f(?!plugin|dump|profile|auto-profile|sanitize|module|opt-info|callgraph|compare-debug|use-ld|save)[\w=.,+-]+"
    r"|D\w+(=[\w.+-]*)?|W[\w=-]*|g\d?|pthread|lineinfo|-?use_fast_math|-?expt-[\w-]+|-extra-device-vectorization"
    r"|-?gencode=[\w=,]+|-?arch=\w+|-?maxrregcount=\d+|-ptxas-options=-v|Xptxas|Xptxas=-[\w=-]+|Xcompiler)"
)
_LINK_FLAG = re.compile(r"-(fopenmp|lgomp|lm|lcuda|lcudart|lcublas|lcublasLt|lcudnn|lnvrtc|pthread|lpthread)")
_FUNCTION = re.compile(r"[\w:<>, ]+")

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_DIRECTIVE = re.compile(r"^[ \t]*(?:#|%:)[ \t]*(\w+)[ \t]*(.*)$", re.MULTILINE)
_HEADER = re.compile(r'<[\w.+-]+(?:/[\w.+-]+)*>|"[\w.+-]+(?:/[\w.+-]+)*"')
_ASSEMBLER = re.compile(r"\b(asm|__asm__|__asm)\b")
_ASSEMBLER_READS = re.compile(r"(?<![\w)\]])\.\s*(incbin|include)\b")


class CallRefused(ValueError):
    """The call is not one that is compiled; the message is for the user."""


@dataclass(frozen=True)
class ExtensionCall:
    """Arguments of `load_inline`, as far as they decide what is built.

    Attributes:
        name: of the extension, a Python identifier.
        cpp_sources: C++ sources, in order.
        cuda_sources: CUDA sources, in order.
        functions: names to bind with their docstrings, or None.
        extra_cflags: flags for the C++ compiler.
        extra_cuda_cflags: flags for nvcc.
        extra_ldflags: flags for the linker.
        with_cuda: whether to link with CUDA; None lets the sources decide.
        is_python_module: whether the library is imported or only loaded.
        with_pytorch_error_handling: see torch.
        no_implicit_headers: see torch.
    """

    name: str
    cpp_sources: tuple[str, ...]
    cuda_sources: tuple[str, ...] = ()
    functions: tuple[tuple[str, str], ...] | None = None
    extra_cflags: tuple[str, ...] = ()
    extra_cuda_cflags: tuple[str, ...] = ()
    extra_ldflags: tuple[str, ...] = ()
    with_cuda: bool | None = None
    is_python_module: bool = True
    with_pytorch_error_handling: bool = True
    no_implicit_headers: bool = False

    @cached_property
    def canonical(self) -> str:
        """One canonical text per meaning."""
        return json.dumps(asdict(self), sort_keys=True)

    @cached_property
    def digest(self) -> str:
        """Identifies the call between a role and the referee. Results are stored under a longer key."""
        return hashlib.sha256(self.canonical.encode("utf-8", "surrogatepass")).hexdigest()[:40]

    @property
    def uses_cuda(self) -> bool:
        """Whether nvcc or the CUDA libraries are used."""
        return bool(self.cuda_sources) if self.with_cuda is None else self.with_cuda

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments for torch's function, with fresh lists (it changes them)."""
        fields = asdict(self)
        lists = {key: list(value) for key, value in fields.items() if isinstance(value, tuple)}
        return {**fields, **lists, "functions": None if self.functions is None else dict(self.functions)}


def from_arguments(bound: Mapping[str, Any]) -> ExtensionCall:
    """The call of torch's function, from its bound arguments with defaults applied.

    Raises:
        CallRefused: it asks for something that is not built here.
    """
    if bound.get("extra_include_paths"):
        raise CallRefused("extra_include_paths is not allowed")
    if bound.get("sycl_sources") or bound.get("with_sycl") or bound.get("extra_sycl_cflags"):
        raise CallRefused("SYCL is not available here")
    functions = bound["functions"]
    if isinstance(functions, str):
        functions = [functions]
    if isinstance(functions, (list, tuple)):
        functions = {name: name for name in functions}
    if functions is not None and not isinstance(functions, dict):
        raise CallRefused("functions must be a string, a list of strings or a dictionary")

    def texts(key: str) -> list[Any]:
        value = bound[key]
        if value is None:
            return []
        return [value] if isinstance(value, str) else list(value)

    return parse(
        {
            "name": bound["name"],
            "cpp_sources": texts("cpp_sources"),
            "cuda_sources": texts("cuda_sources"),
            "functions": None if functions is None else [list(pair) for pair in functions.items()],
            "extra_cflags": texts("extra_cflags"),
            "extra_cuda_cflags": texts("extra_cuda_cflags"),
            "extra_ldflags": texts("extra_ldflags"),
            "with_cuda": bound["with_cuda"],
            "is_python_module": bound["is_python_module"],
            "with_pytorch_error_handling": bound.get("with_pytorch_error_handling", True),
            "no_implicit_headers": bound.get("no_implicit_headers", False),
        }
    )


def parse(value: Any) -> ExtensionCall:
    """Checks plain data that claims to be a call.

    Raises:
        CallRefused: it is not one, or breaks a rule.
    """
    if not isinstance(value, dict) or set(value) != set(ExtensionCall.__dataclass_fields__):
        raise CallRefused("the call has the wrong fields")
    name, functions = value["name"], value["functions"]
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_]\w{0,99}", name, re.ASCII):
        raise CallRefused("the name must be a Python identifier of at most 100 characters")
    if functions is not None:
        functions = _functions(functions)
    switches = ("is_python_module", "with_pytorch_error_handling", "no_implicit_headers")
    if any(not isinstance(value[key], bool) for key in switches):
        raise CallRefused(f"{', '.join(switches)} must be True or False")
    if value["with_cuda"] not in (None, True, False):
        raise CallRefused("with_cuda must be None, True or False")
    call = ExtensionCall(
        name=name,
        cpp_sources=_strings(value, "cpp_sources", _MAX_SOURCES, MAX_SOURCE_BYTES),
        cuda_sources=_strings(value, "cuda_sources", _MAX_SOURCES, MAX_SOURCE_BYTES),
        functions=functions,
        extra_cflags=_flags(value, "extra_cflags", "compiler", _COMPILE_FLAG),
        extra_cuda_cflags=_flags(value, "extra_cuda_cflags", "compiler", _COMPILE_FLAG),
        extra_ldflags=_flags(value, "extra_ldflags", "linker", _LINK_FLAG),
        with_cuda=value["with_cuda"],
        **{key: value[key] for key in switches},
    )
    if len(call.canonical) > MAX_SOURCE_BYTES:
        raise CallRefused(f"the sources are larger than {MAX_SOURCE_BYTES} bytes")
    for text in (*call.cpp_sources, *call.cuda_sources):
        check_source(text)
    return call


def _functions(value: Any) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, (list, tuple)) or len(value) > _MAX_FUNCTIONS:
        raise CallRefused(f"functions must name at most {_MAX_FUNCTIONS} functions")
    pairs = []
    for pair in value:
        if not (isinstance(pair, (list, tuple)) and len(pair) == 2 and all(isinstance(p, str) for p in pair)):
            raise CallRefused("functions must map names to docstrings")
        if not _FUNCTION.fullmatch(pair[0]) or not pair[1].isprintable():
            raise CallRefused(f"functions: {pair[0][:60]!r} is not the name of a function")
        pairs.append((pair[0], pair[1]))
    return tuple(pairs)


def _strings(value: dict[str, Any], key: str, most: int, longest: int) -> tuple[str, ...]:
    texts = value[key]
    if not isinstance(texts, (list, tuple)) or len(texts) > most:
        raise CallRefused(f"{key} must be a string or at most {most} strings")
    if any(not isinstance(text, str) or len(text) > longest for text in texts):
        raise CallRefused(f"{key} must hold strings of at most {longest} characters")
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        raise CallRefused(f"{key} has characters that a file cannot contain") from None
    return tuple(texts)


def _flags(value: dict[str, Any], key: str, kind: str, allowed: re.Pattern[str]) -> tuple[str, ...]:
    flags = tuple(flag.strip() for flag in _strings(value, key, _MAX_FLAGS, _MAX_FLAG_CHARACTERS))
    for flag in flags:
        if not allowed.fullmatch(flag):
            raise CallRefused(f"the {kind} flag {flag!r} is not on the list of allowed flags")
    return flags


def check_source(text: str) -> None:
    """Refuses sources that name files outside the include folders.

    Raises:
        CallRefused: an include of a path that is absolute, leaves its folder or is computed; `#embed`; assembler
            directives that read files.
    """
    plain = _COMMENT.sub(" ", text.replace("\\\r\n", "").replace("\\\n", "").replace("??=", "#"))
    for word, rest in _DIRECTIVE.findall(plain):
        if word == "embed":
            raise CallRefused("#embed is not allowed")
        if word in ("include", "include_next", "import"):
            named = _HEADER.match(rest.strip())
            if named is None or ".." in named.group().strip('<>"').split("/"):
                raise CallRefused(
                    f"#{word} {rest.strip()[:80]}: only headers of the system, the compiler and torch can be included"
                )
    if _ASSEMBLER.search(plain) and _ASSEMBLER_READS.search(plain):
        raise CallRefused("assembler directives that read files (.incbin, .include) are not allowed")
