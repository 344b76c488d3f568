"""Code that hides what it does: decoded and executed text (E67), names assembled by the preprocessor (E66)."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from evaluator.integrity.rules.base import Hit, Rule, at, calls_to, in_native
from evaluator.integrity.source import Source

_DECODERS = frozenset(
    {
        "base64.b64decode", "base64.b85decode", "base64.decodebytes", "marshal.loads", "pickle.loads", "zlib.decompress",
        "lzma.decompress", "bz2.decompress", "codecs.decode", "bytes.fromhex", "binascii.unhexlify", "types.CodeType",
        "types.FunctionType",
    }
)  # fmt: skip


_RUNNERS = frozenset(
    {"exec", "eval", "compile", "__import__", "importlib.import_module", "builtins.exec", "builtins.eval"}
)


def _hidden(source: Source) -> Iterator[Hit]:
    for name, node in source.calls:
        if name in _RUNNERS:
            yield at(node, f"{name}()")
        elif name == "getattr" and len(node.args) > 1:
            if isinstance(node.args[1], (ast.BinOp, ast.JoinedStr, ast.Call, ast.Subscript)):
                yield at(node, "getattr() with an assembled name")
    yield from calls_to(source, _DECODERS)
    for part in source.nodes:
        if isinstance(part, ast.Attribute) and part.attr in ("__code__", "__globals__", "__builtins__"):
            yield at(part, f".{part.attr}")


RULES = (
    Rule("obfuscated_exec", "warning", "it runs code that its text does not show", _hidden),
    Rule(
        "token_pasting",
        "warning",
        "the preprocessor assembles names",
        lambda source: in_native(source, r"##[ \t]{0,8}\w{0,40}"),
    ),
)
