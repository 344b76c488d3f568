"""The trusted program around the compiler: sources in, one library out.

Runs alone in a disposable sandboxed process.

No user Python runs beside it, and the built library is not loaded: its static initializers could change the file
before the referee takes it. It uses torch's own `load_inline`, so flags, bindings and linking are the same as for
a user.

Headers: `torch/extension.h` takes a C++ compiler 20 s and nvcc 40 s, nearly all for parts that kernels do not use.
So the first attempt finds shorter headers of these names (beside this file) before torch's, or the same
precompiled. If that does not compile, possibly because of what they leave out, torch's own headers are used, and
that attempt's messages count.

nvcc runs its steps one after another. :mod:`evaluator.building.nvcc_steps` replaces it and runs independent steps
in parallel.
"""

from __future__ import annotations

import inspect
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evaluator.building.extension_call import ExtensionCall

#: Folder of the shorter headers; compilers find them under torch's names.
LEAN_HEADERS = Path(__file__).with_name("headers")
_NVCC_STEPS = Path(__file__).with_name("nvcc_steps.py")
LIBRARY, ERRORS, REFUSAL = "library.so", "errors.txt", "refusal.txt"
_ERROR_LINE = re.compile(
    r"error[:\s]|undefined|cannot find -l|out of memory|signal terminated|not allowed|ptxas", re.IGNORECASE
)
#: Lines that repeat the compiler's own command line, which help no reader.
_NOISE = re.compile(
    r"^\[\d+/\d+\]|^FAILED:|^ninja:|^collect2:|^compilation terminated|Error building extension"
)
_MAX_ERROR_LINES = 20
_WHOLE_API = re.compile(
    r"TORCH_LIBRARY|torch/(?!extension\.h|types\.h)|torch::(nn|optim|jit|data|autograd|serialize|special|fft|linalg)\b"
)


#: A call of a torch operation, and the header that declares it. The short headers include that header if it
#: exists.
_OPERATION = re.compile(r"\b(?:at|torch)::(\w+)\s*\(")
NAMED_OPERATIONS = "kernelwright_named_operations.h"

#: Names in an error that may come from a header that is too short.
_OF_TORCH = re.compile(
    r"torch|\bat\b|c10|TORCH_|AT_|\bpy\b|pybind|No such file|cannot open source"
    # Torch's headers include many of the standard library's, the short ones fewer.
    r"|not a member of .std\b|namespace \"std\" has no member|incomplete type"
)


@dataclass(frozen=True)
class Settings:
    """The referee's settings for a build.

    Attributes:
        architectures: value of ``TORCH_CUDA_ARCH_LIST``: the device's own architecture, or empty.
        jobs: translation units compiled at once.
        precompiled: folder of the precompiled `torch/extension.h` for the call's flags, or empty.
    """

    architectures: str = ""
    jobs: int = 2
    precompiled: str = ""


def main(call: ExtensionCall, settings: Settings) -> None:
    """Builds into ``out`` of the working folder: a library, or the compiler's messages, or why it is refused."""
    os.environ["MAX_JOBS"] = str(settings.jobs)
    if settings.architectures:
        os.environ["TORCH_CUDA_ARCH_LIST"] = settings.architectures
    if call.cuda_sources and settings.jobs > 1:
        _run_steps_at_once()
    tries: list[list[str]] = [[]]
    if includes_torch(call) and not _WHOLE_API.search("\n".join((*call.cpp_sources, *call.cuda_sources))):
        first = _named_operations(call) or settings.precompiled
        tries.insert(0, [*filter(None, [first]), str(LEAN_HEADERS)])
    for number, headers in enumerate(tries):
        folder = Path(f"build-{number}").resolve()
        folder.mkdir()
        errors = _build(call, folder, headers)
        if not (errors and _may_miss_a_header(call, errors)):
            break
        shutil.rmtree(folder)
    if errors:
        Path("out", ERRORS).write_text(errors, encoding="utf-8", errors="replace")
        return
    foreign = _foreign_files(folder, headers)
    if foreign:
        words = f"the sources include files outside the system's, the compiler's and torch's headers: {foreign[:3]}"
        Path("out", REFUSAL).write_text(words, encoding="utf-8", errors="replace")
        return
    os.replace(folder / f"{call.name}.so", Path("out", LIBRARY))


def _named_operations(call: ExtensionCall) -> str:
    """A folder with a header of those operations that the sources call and the short headers lack; empty if there
    is none.

    Otherwise a kernel's wrapper that falls back to ``at::mm`` would be compiled with all of torch.
    """
    import torch.utils.cpp_extension as cpp_extension

    names = set(_OPERATION.findall("\n".join((*call.cpp_sources, *call.cuda_sources))))
    folders = [Path(folder) / "ATen" / "ops" for folder in cpp_extension.include_paths()]
    short = (LEAN_HEADERS / "torch" / "types.h").read_text(encoding="utf-8")
    lines = [
        f"#include <ATen/ops/{name}.h>\n"
        for name in sorted(names)
        if f"ATen/ops/{name}.h" not in short and any((folder / f"{name}.h").exists() for folder in folders)
    ]
    if not lines:
        return ""
    made = Path("named").resolve()
    made.mkdir()
    # Sources that call operations often add their results too.
    text = "".join([*lines, "#include <ATen/TensorOperators.h>\n"])
    (made / NAMED_OPERATIONS).write_text(text, encoding="utf-8")
    return str(made)


def _may_miss_a_header(call: ExtensionCall, errors: str) -> bool:
    """Whether torch's own headers might compile what the short ones did not."""
    texts = (*call.cpp_sources, *call.cuda_sources)
    return bool(_OF_TORCH.search(errors)) or any("using namespace" in text for text in texts)


def includes_torch(call: ExtensionCall) -> bool:
    """Whether a source of the call includes one of torch's large headers."""
    if not call.no_implicit_headers:
        return True
    texts = "\n".join((*call.cpp_sources, *call.cuda_sources))
    return "torch/extension.h" in texts or "torch/types.h" in texts


def _build(call: ExtensionCall, folder: Path, headers: list[str]) -> str:
    """The compiler's messages, empty if it succeeded."""
    import torch.utils.cpp_extension as cpp_extension

    for name in ("_import_module_from_library", "JIT_EXTENSION_VERSIONER"):
        if not hasattr(cpp_extension, name):
            raise RuntimeError(
                f"this torch has no cpp_extension.{name}: the built library would be loaded here"
            )
    module: Any = cpp_extension
    module._import_module_from_library = lambda *arguments: None
    # Torch would give a second build of one name another name.
    module.JIT_EXTENSION_VERSIONER = type(module.JIT_EXTENSION_VERSIONER)()
    # It would look for headers precompiled in its own, read-only folder and remove them.
    module.remove_extension_h_precompiler_headers = lambda: None
    known = inspect.signature(cpp_extension.load_inline).parameters
    arguments = {key: value for key, value in call.arguments().items() if key in known}
    if shutil.which("ld.gold"):
        # Torch's libraries are large: 0.2 s instead of 0.5 (without those for CUDA).
        arguments["extra_ldflags"] = ["-fuse-ld=gold", *arguments["extra_ldflags"]]
    try:
        cpp_extension.load_inline(
            **arguments, extra_include_paths=headers, build_directory=str(folder), verbose=False
        )
    except (RuntimeError, subprocess.SubprocessError, OSError) as error:
        return compiler_words(str(error), folder)
    return ""


def _run_steps_at_once() -> None:
    """Replaces nvcc by the parallel program, if torch has an nvcc and a program can be run from here."""
    import torch.utils.cpp_extension as cpp_extension

    script = Path("nvcc-steps").resolve()
    if not cpp_extension.CUDA_HOME or not re.fullmatch(r"[\w./-]+", str(script)):
        return
    nvcc = os.path.join(cpp_extension.CUDA_HOME, "bin", "nvcc")
    command = shlex.join([sys.executable, "-I", "-S", str(_NVCC_STEPS), nvcc])
    script.write_text(f'#!/bin/sh\nexec {command} "$@"\n', encoding="utf-8")
    script.chmod(0o700)
    try:
        subprocess.run(
            [script, "--version"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return
    os.environ["PYTORCH_NVCC"] = str(script)


def compiler_words(text: str, folder: Path) -> str:
    """The lines of a failed build that say what is wrong."""
    lines = [line.replace(f"{folder}/", "") for line in text.splitlines() if not _NOISE.search(line)]
    telling = [line for line in lines if _ERROR_LINE.search(line)]
    return "\n".join(telling[:_MAX_ERROR_LINES]) or text[-1500:] or "the compiler failed without a message"


def _foreign_files(folder: Path, headers: list[str]) -> list[str]:
    """Files that the compiler read and that are not known headers, from the compiler's own list (ninja keeps it)."""
    import torch.utils.cpp_extension as cpp_extension

    listing = subprocess.run(
        ["ninja", "-t", "deps"], cwd=folder, capture_output=True, text=True, check=True
    ).stdout
    roots = [*cpp_extension.include_paths("cpu"), sysconfig.get_path("include"), "/usr"]
    roots += [sys.prefix, sys.base_prefix, *headers, str(folder)]
    if cpp_extension.CUDA_HOME:
        roots.append(cpp_extension.CUDA_HOME)
    trees = tuple(os.path.realpath(root).rstrip("/") + "/" for root in roots)
    files = {line.strip() for line in listing.splitlines() if line.startswith("    ")}
    return sorted(
        file for file in files if not os.path.realpath(os.path.join(folder, file)).startswith(trees)
    )


def precompile(flags: list[str], folder: str) -> None:
    """Precompiles the short `torch/extension.h` for some compiler flags into ``folder``.

    GCC itself checks that a precompiled header fits the including source; one that does not fit is skipped.

    Raises:
        subprocess.CalledProcessError, OSError: no compiler, or no room.
    """
    import torch.utils.cpp_extension as cpp_extension

    os.makedirs(os.path.join(folder, "torch"), exist_ok=True)
    target = os.path.join(folder, "torch", "extension.h.gch")
    includes = [*cpp_extension.include_paths("cpu"), sysconfig.get_path("include", scheme="posix_prefix")]
    command = [cpp_extension.get_cxx_compiler(), "-DTORCH_API_INCLUDE_EXTENSION_H", f"-I{LEAN_HEADERS}"]
    for include in includes:
        command += ["-isystem", include]
    command += ["-fPIC", _standard(), *flags, "-x", "c++-header", str(LEAN_HEADERS / "torch" / "extension.h")]
    subprocess.run([*command, "-o", f"{target}.part"], check=True)
    os.rename(f"{target}.part", target)


def _standard() -> str:
    """The language standard that this torch compiles extensions with."""
    import torch.utils.cpp_extension as cpp_extension

    found = re.search(
        r"'-fPIC', '(-std=c\+\+\d\d)'", inspect.getsource(cpp_extension._write_ninja_file_to_build_library)
    )
    return found[1] if found else "-std=c++17"
