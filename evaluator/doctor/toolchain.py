"""Compilers and libraries that candidates in C++, CUDA and Triton, and compiled baselines, need."""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

from evaluator.doctor.findings import BAD, DOUBTFUL, GOOD, Line, Section
from evaluator.environment import package_version

_SECONDS = 60
_TORCH = "import torch; print(torch.__version__); print(torch.version.cuda); print(torch.cuda.is_available())"

_ADVICE = {
    "cc": "Install a C compiler (Debian: apt-get install build-essential): without one the referee chains calls in "
    "Python, which is slower, and Triton cannot start.",
    "g++": "Install g++ (Debian: apt-get install build-essential): torch.compile and C++ candidates need it.",
    "c++": "Install a C++ compiler under this name, or set CXX.",
    "ninja": "Install ninja: load_inline, the way to C++ in a candidate, runs it.",
    "nvcc": "Install the CUDA toolkit of torch's CUDA version: candidates that use load_inline with CUDA sources need "
    "it; Triton and NVRTC candidates do not.",
}


def examine(*, gpu: bool) -> Section:
    """Versions of all compilers. GPU-only tools are reported missing only if there is a GPU."""
    section = Section("Compilers and libraries")
    programs: dict[str, str | None] = {}
    for name in _ADVICE:
        programs[name] = _program(name)
    nvrtc = _nvrtc()
    section.facts = {"programs": programs, "nvrtc": nvrtc, "triton": package_version("triton")}
    section.lines.append(_torch(section, gpu=gpu))
    for name, advice in _ADVICE.items():
        needed = gpu if name == "nvcc" else name in ("cc", "g++")
        section.lines.append(_line(name, programs[name], needed, advice))
    section.lines.append(
        _line("nvrtc", nvrtc, gpu, "Install the nvrtc that belongs to this torch; raw kernels need it.")
    )
    triton = package_version("triton")
    section.lines.append(
        _line(
            "triton",
            triton,
            gpu,
            "Install triton (pip install triton); Triton candidates need it."
            if gpu
            else "Only needed to check Triton candidates here.",
        )
    )
    return section


def _line(name: str, found: str | None, needed: bool, advice: str) -> Line:
    if found is not None:
        return Line(name, GOOD, found)
    return (
        Line(name, DOUBTFUL, "not found", advice)
        if needed
        else Line(name, GOOD, "not found, not needed here")
    )


def _program(name: str) -> str | None:
    path = shutil.which(name)
    if path is None:
        beside = Path(sys.executable).with_name(name)
        if not beside.exists():
            return None
        path = str(beside)
    try:
        done = subprocess.run([path, "--version"], capture_output=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{path}, which does not answer: {error}"
    lines = [line.strip() for line in done.stdout.decode("utf-8", "replace").splitlines() if line.strip()]
    release = next((line for line in lines if "release" in line), lines[0] if lines else "no version")
    return f"{path}: {release}"


def _torch(section: Section, *, gpu: bool) -> Line:
    """Checks torch in a separate process: importing it here would be slow, and a broken one may crash."""
    version = package_version("torch")
    section.facts["torch"] = version
    if version is None:
        return Line("torch", BAD, "not installed", "Install torch 2.11 or newer for this Python.")
    try:
        done = subprocess.run(
            [sys.executable, "-c", _TORCH], capture_output=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Line("torch", BAD, f"{version}, which does not import: {error}", "Install torch again.")
    answer = done.stdout.decode("utf-8", "replace").split()
    if done.returncode != 0 or len(answer) != 3:
        last = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:] or ["it crashed"]
        words = f"{version}, which does not import: {last[0][:300]}"
        return Line("torch", BAD, words, "Install torch again, for this Python and this machine.")
    section.facts["torch_cuda"] = None if answer[1] == "None" else answer[1]
    found = f"{answer[0]}, CUDA {answer[1]}" if answer[1] != "None" else f"{answer[0]}, without CUDA"
    if gpu and answer[2] != "True":
        advice = "Install a CUDA build of torch that fits the driver; until then only the CPU can be judged."
        return Line("torch", DOUBTFUL, f"{found}; it cannot use this machine's GPU", advice)
    return Line("torch", GOOD, found)


def _nvrtc() -> str | None:
    """Path and version of the runtime compiler that torch would load."""
    folders = [Path("/usr/local/cuda/lib64")]
    for package in ("nvidia", "torch"):
        found = importlib.util.find_spec(package)
        for root in (found.submodule_search_locations or ()) if found else ():
            folders += [
                folder for folder in (*Path(root).glob("*/lib"), Path(root, "lib")) if folder.is_dir()
            ]
    names = [
        str(path)
        for folder in folders
        if folder.is_dir()
        for path in sorted(folder.glob("libnvrtc.so*"))
        if "alt" not in path.name
    ]
    names += filter(None, [ctypes.util.find_library("nvrtc")])
    for name in names:
        major, minor = ctypes.c_int(), ctypes.c_int()
        try:
            if ctypes.CDLL(name).nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)) == 0:
                return f"{name}: {major.value}.{minor.value}"
        except (OSError, AttributeError):
            continue
    return None
