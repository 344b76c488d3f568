"""Runs Python programs that need torch, each in a process of its own that is forked from one which has imported it.

Starting an interpreter and importing torch takes two seconds, with the compiler four; forking takes none. The process that forks has
run nothing. It does not know a GPU, so programs for one are started as usual.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

_FORKS = """
import gc, importlib, json, os, runpy, sys, tempfile, traceback
gc.disable()  # a quarter of the time of importing the compiler
for name in sys.argv[1:]:
    importlib.import_module(name)
gc.freeze()
gc.enable()

def run(request):
    os.chdir(request["folder"])
    os.environ.update(request["environment"])
    tempfile.tempdir = None
    for number, (name, flags) in enumerate((("stdin", os.O_RDONLY), ("stdout", os.O_WRONLY), ("stderr", os.O_WRONLY))):
        os.dup2(os.open(request[name], flags), number)
    sys.stdin = open(0, closefd=False)
    sys.argv = request["words"]
    sys.path.insert(0, request["folder"])
    code = 1
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 1)

for line in sys.stdin:
    child = os.fork()
    if not child:
        run(json.loads(line))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
_one_at_a_time = threading.Lock()


COMPILER = (
    "torch",
    "sympy",
    "torch._dynamo",
    "torch._inductor.compile_fx",
    "torch._inductor.codegen.cpp",
    "torch._inductor.codegen.triton",
    "tests.agent.begun",
)
#: For programs that run kernels in Triton's interpreter, which has to be asked for before Triton is imported. Tracing a graph imports the compiler.
INTERPRETED = ("torch", "triton", "torch._dynamo", "torch._inductor.standalone_compile")
_ROOT = Path(__file__).parents[2]
# Read while the compiler is imported; the sandbox sets the same.
_ENVIRONMENT = {
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
    "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
    # Products of small arrays are faster without threads, which the other tests would wait for.
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONPATH": str(_ROOT),
}


@cache
def _forking(modules: Sequence[str]) -> subprocess.Popen[str]:
    interpreter = {"TRITON_INTERPRET": "1"} if modules == INTERPRETED else {}
    process = subprocess.Popen(
        [sys.executable, "-c", _FORKS, *modules],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **_ENVIRONMENT, **interpreter},
    )
    atexit.register(process.communicate)
    return process


def run(
    folder: str | Path,
    *words: str,
    given: str = "",
    modules: Sequence[str] = COMPILER,
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program of a folder there, as `python WORDS` does, with a text as its standard input.

    Args:
        modules: what is imported before.
    """
    with tempfile.TemporaryDirectory() as kept, _one_at_a_time:
        paths = {name: Path(kept, name) for name in ("stdin", "stdout", "stderr")}
        for path in paths.values():
            path.write_text(given if path.name == "stdin" else "")
        request = {
            "folder": str(folder),
            "words": words,
            "environment": dict(environment or {}),
            **{name: str(path) for name, path in paths.items()},
        }
        process = _forking(modules)
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        code = int(process.stdout.readline())
        return subprocess.CompletedProcess(
            words, code, paths["stdout"].read_text(), paths["stderr"].read_text()
        )
