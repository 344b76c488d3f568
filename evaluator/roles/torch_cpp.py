"""`load_inline` inside the sandbox: the compile role builds, every other role only loads what was built.

A candidate calls torch's own function; nothing of it is copied here. The build folder is named by the call's content,
so a change of source, flags or torch is another folder.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import json
import os
import re
import subprocess
from typing import Any

import torch

from evaluator.roles.runner import BuildError, ContractError

_COMPILE_FLAG = re.compile(
    r"-(O[0-3s]|Ofast|march=[\w.+-]+|mtune=[\w.+-]+|m[\w=.,-]+|f(?!plugin|dump|profile|sanitize)[\w=.,+-]+|std=[\w+]+"
    r"|D\w+(=[\w.+-]*)?|W[\w=-]*|g\d?|pthread|lineinfo|-?use_fast_math|-expt-[\w-]+|-extra-device-vectorization"
    r"|gencode=[\w=,]+|-ptxas-options=-v|Xptxas|Xcompiler)"
)
_LINK_FLAG = re.compile(r"-(fopenmp|lgomp|lm|lcuda|lcudart|lcublas|lcublasLt|lcudnn|lnvrtc|pthread|lpthread)")


class Builder:
    """Stands in for ``torch.utils.cpp_extension.load_inline`` in one process."""

    def __init__(self, work: str, *, may_compile: bool) -> None:
        self.folder = os.path.join(work, "extensions")
        self.may_compile = may_compile
        self._original: Any = None

    def install(self) -> None:
        """Replaces the function in torch's module; imported names see it because user code is loaded afterwards."""
        import torch.utils.cpp_extension as cpp_extension

        if self._original is None:
            self._original = cpp_extension.load_inline
            cpp_extension.load_inline = self.load_inline
            cpp_extension.load = self._refuse_load

    @staticmethod
    def _refuse_load(*arguments: Any, **keywords: Any) -> Any:
        raise ContractError("torch.utils.cpp_extension.load() is not available here: use load_inline()")

    def load_inline(self, *arguments: Any, **keywords: Any) -> Any:
        """Same signature as torch's function; see there."""
        bound = inspect.signature(self._original).bind(*arguments, **keywords)
        bound.apply_defaults()
        call = dict(bound.arguments)
        name = str(call["name"])
        if not name.isidentifier():
            raise ContractError("load_inline: the name must be a Python identifier")
        for flag in [*(call["extra_cflags"] or []), *(call["extra_cuda_cflags"] or [])]:
            if not _COMPILE_FLAG.fullmatch(flag):
                raise ContractError(
                    f"load_inline: the compiler flag {flag!r} is not on the list of allowed flags"
                )
        for flag in call["extra_ldflags"] or []:
            if not _LINK_FLAG.fullmatch(flag):
                raise ContractError(
                    f"load_inline: the linker flag {flag!r} is not on the list of allowed flags"
                )
        if call["extra_include_paths"]:
            raise ContractError("load_inline: extra_include_paths is not allowed")
        call.update(verbose=False, build_directory=None)
        key = hashlib.sha256(
            json.dumps([torch.__version__, call], sort_keys=True, default=str).encode()
        ).hexdigest()
        folder = os.path.join(self.folder, key[:32])
        library = os.path.join(folder, f"{name}.so")
        if not os.path.exists(library):
            if not self.may_compile:
                raise BuildError(
                    "this extension was not built in the compile step: call load_inline at import time"
                )
            os.makedirs(folder, exist_ok=True)
            self._build(call, folder)
        return _load(name, library, bool(call["is_python_module"]))

    def _build(self, call: dict[str, Any], folder: str) -> None:
        try:
            self._original(**{**call, "build_directory": folder})
        except (RuntimeError, subprocess.SubprocessError, OSError) as error:
            raise BuildError(_compiler_words(str(error))) from None


def _compiler_words(text: str) -> str:
    """The lines of a failed build that say what is wrong."""
    lines = [line for line in text.splitlines() if re.search(r"error|undefined|fatal", line, re.IGNORECASE)]
    return "the extension does not compile: " + ("\n".join(lines[:20]) or text[-1500:])


def _load(name: str, library: str, is_python_module: bool) -> Any:
    if not is_python_module:
        torch.ops.load_library(library)
        return library
    spec = importlib.util.spec_from_file_location(name, library)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
