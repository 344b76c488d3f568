"""Prepares what Inductor's C++ compiler needs on this machine, once for every compiling process.

Without it each process, with its private /tmp, precompiles a header (5 s on one core), and each new compile cache
tests six CPU instruction sets (7 s), before the first kernel is compiled.
"""

from __future__ import annotations

import os
import shutil

import torch

#: The subfolder with Inductor's own instruction-set tests, in the form that it expects in its cache.
_TRIALS = "isa"


def use(folder: str) -> None:
    """Points Inductor at what `build` left in ``folder``, if it is complete. May be called again until it is.

    Each process gets a private folder of links, so that a missing header (another instruction set, an interrupted
    build) is rebuilt instead of ending the evaluation.
    """
    private = os.path.join(os.environ["TMPDIR"], "headers")
    if not _place(private, private) or not os.path.exists(os.path.join(folder, "complete")):
        return
    for entry in os.listdir(folder):
        link = os.path.join(private, entry)
        if not os.path.lexists(link):
            os.symlink(os.path.join(folder, entry), link)
    trials = os.path.join(folder, _TRIALS)
    if os.path.isdir(trials):
        from torch._inductor import config

        config.cpp.vec_isa_ok = True
        _copy_trials(trials, os.environ["TORCHINDUCTOR_CACHE_DIR"])


def build(folder: str, *, trusting: bool) -> None:
    """Precompiles the headers into ``folder``, tests the CPU's instruction sets there, and runs one kernel.

    Args:
        folder: the shared one.
        trusting: skip the tests of whole sets: the kernel is compiled for the best set, and running it proves as
            much. Inductor's tests of additional features are made. Otherwise all are left to each compiling
            process.

    Raises:
        Exception: whatever the compiler raises.
    """
    from torch._inductor import config, cpu_vec_isa

    trials = os.path.join(folder, _TRIALS)
    shutil.rmtree(trials, ignore_errors=True)
    if not _place(folder, os.path.join(os.environ["TMPDIR"], "headers")):
        return
    if trusting:
        cache = os.environ["TORCHINDUCTOR_CACHE_DIR"]
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = trials
        config.cpp.vec_isa_ok = True
        cpu_vec_isa.pick_vec_isa()
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
    compiled = torch.compile(lambda x: (x * 2 + 1).relu(), dynamic=False)
    compiled(torch.ones(64))


def _place(headers: str, private: str) -> bool:
    """Where Inductor reads and writes headers, and its locks. False if this torch keeps no headers."""
    import torch._inductor.codecache as codecache

    if not hasattr(codecache, "_HEADER_DIR"):
        return False
    os.makedirs(private, exist_ok=True)
    codecache._HEADER_LOCK_DIR = os.path.join(private, "locks")
    codecache._HEADER_DIR = headers
    return True


def _copy_trials(trials: str, cache: str) -> None:
    """Each library appears atomically: a process that found half of one would count it as a failed test."""
    for place, _, names in os.walk(trials):
        into = os.path.join(cache, os.path.relpath(place, trials))
        for name in names:
            target = os.path.join(into, name)
            if name.endswith(".so") and not os.path.exists(target):
                os.makedirs(into, exist_ok=True)
                partial = f"{target}.{os.getpid()}"
                shutil.copyfile(os.path.join(place, name), partial)
                os.replace(partial, target)
