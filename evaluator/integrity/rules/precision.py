"""Arithmetic that differs from the reference's: half types (E47) and flags that affect every later operation
(E48).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from evaluator.integrity.rules.base import Hit, Rule, at, calls_to, in_native
from evaluator.integrity.source import Source

_NARROW = re.compile(r"(?:^|\.)(?:float16|bfloat16|half|float8_\w+|float8e\w+|tf32)$")
_CONVERSIONS = {
    "to",
    "type",
    "astype",
    "zeros",
    "empty",
    "empty_like",
    "zeros_like",
    "full",
    "load",
    "cast",
    "view",
}
_SETTERS = frozenset(
    {
        "torch.set_float32_matmul_precision", "torch.set_default_dtype", "torch.set_num_threads",
        "torch.set_num_interop_threads", "torch.set_flush_denormal", "torch.use_deterministic_algorithms",
        "torch.set_default_device", "torch.backends.cudnn.flags",
        "torch.backends.cuda.enable_flash_sdp", "torch.backends.cuda.enable_math_sdp",
        "torch.backends.cuda.preferred_linalg_library", "torch.backends.cuda.preferred_blas_library",
        "torch.set_default_tensor_type", "torch.set_deterministic_debug_mode", "os.putenv", "os.environ.update",
        "os.environ.setdefault",
    }
)  # fmt: skip


def _half(source: Source) -> Iterator[Hit]:
    for name, node in source.calls:
        last = name.rpartition(".")[2]
        if last == "autocast":
            yield at(node, f"{name}()")
        elif isinstance(node.func, ast.Attribute) and last in ("half", "bfloat16") and not node.args:
            yield at(node, f".{last}()")
        elif last in _CONVERSIONS:
            for given in [*node.args, *(keyword.value for keyword in node.keywords)]:
                if _NARROW.search(source.dotted(given)):
                    yield at(node, f"{last}({source.dotted(given)})")
    for part in source.nodes:
        if isinstance(part, ast.keyword) and part.arg in ("allow_tf32", "input_precision"):
            # Three products of tf32 ("tf32x3") keep what one of them drops.
            if isinstance(part.value, ast.Constant) and part.value.value in (True, "tf32"):
                yield at(part.value, f"{part.arg}={part.value.value!r}")
    yield from in_native(
        source,
        r"\b__(?:half2?|nv_bfloat16|nv_fp8\w*)\b|\b_Float16\b|\bk(?:Half|BFloat16)\b|\bat::(?:Half|BFloat16)\b",
    )


def _flags(source: Source) -> Iterator[Hit]:
    for target, statement in source.assignments():
        name = source.dotted(target.value if isinstance(target, ast.Subscript) else target)
        if name.startswith("torch.backends.") or name == "os.environ":
            yield at(statement, f"{name} = ...")
    yield from calls_to(source, _SETTERS)


RULES = (
    Rule("autocast_or_half", "info", "it computes in a narrower type", _half),
    Rule("global_flags", "warning", "it changes settings that hold for the whole process", _flags),
)
