"""What Inductor's C++ compiler needs on this machine and no task changes: made once, used by every process that compiles.

Without it each process, with its private /tmp, precompiles a header (5 s on one core), and each new compile cache tries six sets
of the processor's instructions (7 s), before the first kernel is compiled.
"""

from __future__ import annotations

import os
import shutil

import torch

#: The folder in the shared one that holds Inductor's own trials of instruction sets, as it looks for them in its cache.
_TRIALS = "isa"


def use(folder: str) -> None:
    """Points Inductor at what `build` left in ``folder``, if it is complete; may be called again until it is.

    Each process gets a private folder of links, so that a header that is missing (another instruction set, an interrupted
    build) is made anew instead of ending the evaluation.
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
    """Precompiles the headers into ``folder``, tries the processor's sets of instructions there, and runs one kernel.

    Args:
        folder: the shared one.
        trusting: leave out the trials of whole sets: that the kernel, which is compiled for the best of them, runs says as much.
            Inductor's trials of what it uses beside a set are made. Otherwise all are left to each process that compiles.

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
    """Where Inductor reads and writes headers, and its locks; False where this torch keeps no headers."""
    import torch._inductor.codecache as codecache

    if not hasattr(codecache, "_HEADER_DIR"):
        return False
    os.makedirs(private, exist_ok=True)
    codecache._HEADER_LOCK_DIR = os.path.join(private, "locks")
    codecache._HEADER_DIR = headers
    return True


def _copy_trials(trials: str, cache: str) -> None:
    """Each library appears at once and whole: half of one, found by a process beside this one, would count as a failed trial."""
    for place, _, names in os.walk(trials):
        into = os.path.join(cache, os.path.relpath(place, trials))
        for name in names:
            target = os.path.join(into, name)
            if name.endswith(".so") and not os.path.exists(target):
                os.makedirs(into, exist_ok=True)
                partial = f"{target}.{os.getpid()}"
                shutil.copyfile(os.path.join(place, name), partial)
                os.replace(partial, target)
