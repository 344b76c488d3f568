"""Runs Python programs that need torch, each in a process of its own that is forked from one which has imported it.

Starting an interpreter and importing torch takes two seconds, forking takes none. The process that forks has run nothing, so it
has one thread.
"""

from __future__ import annotations

import atexit
import json
import subprocess
import sys
import tempfile
import threading
from functools import cache
from pathlib import Path

_FORKS = """
import json, os, runpy, sys, traceback
import torch

def run(request):
    os.chdir(request["folder"])
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


@cache
def _forking() -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", _FORKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    atexit.register(process.communicate)
    return process


def run(folder: str | Path, *words: str, given: str = "") -> subprocess.CompletedProcess[str]:
    """Run a program of a folder there, as `python WORDS` does, with a text as its standard input."""
    with tempfile.TemporaryDirectory() as kept, _one_at_a_time:
        paths = {name: Path(kept, name) for name in ("stdin", "stdout", "stderr")}
        for path in paths.values():
            path.write_text(given if path.name == "stdin" else "")
        request = {
            "folder": str(folder),
            "words": words,
            **{name: str(path) for name, path in paths.items()},
        }
        process = _forking()
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        code = int(process.stdout.readline())
        return subprocess.CompletedProcess(
            words, code, paths["stdout"].read_text(), paths["stderr"].read_text()
        )
