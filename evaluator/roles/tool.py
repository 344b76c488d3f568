"""Runs a trusted program beside untrusted files in a disposable process, and the attacks of the sandbox's
self-test.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import Any

MAX_OUTPUT_FILES = 64
#: Of a program that was prepared: its globals.
_prepared: dict[str, Any] = {}


def run(request: dict[str, Any], descriptors: list[int]) -> bytes:
    """Runs ``program`` as ``__main__`` in a folder that holds ``files``. What it wrote under ``out`` is returned.

    The first descriptor carries the program and the files as JSON, the second takes the outputs, one after the
    other. With the stage "prepare" the program is run as a module and its `prepare` called, with the stage "main", in another
    request to the same process, its `main`.
    """
    stage = request.get("stage")
    exit_code = 0
    try:
        if stage == "main":
            os.close(descriptors[0])
            _prepared["main"]()
        else:
            path, program = _placed(descriptors[0])
            scope = {
                "__name__": "_program" if stage else "__main__",
                "__file__": path,
                "__builtins__": __builtins__,
            }
            exec(compile(program, path, "exec"), scope)
            if stage:
                _prepared.update(scope)
                _prepared["prepare"]()
    except SystemExit as leaving:
        exit_code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:
        traceback.print_exc()
        exit_code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    written = []
    with os.fdopen(descriptors[1], "wb") as sink:
        for name in sorted(os.listdir("out"))[:MAX_OUTPUT_FILES]:
            with open(os.path.join("out", name), "rb") as source:
                data = source.read()
            sink.write(data)
            written.append([name, len(data)])
    return json.dumps({"exit": exit_code, "outputs": written}).encode()


def _placed(descriptor: int) -> tuple[str, str]:
    """Path and text of the program, which lies with the files in a new folder; that becomes the current one."""
    with os.fdopen(descriptor, "rb") as file:
        file.seek(0)
        given = json.loads(file.read())
    folder = os.path.join(os.environ["TMPDIR"], "tool")
    os.makedirs(os.path.join(folder, "out"))
    os.chdir(folder)
    for name, text in given["files"].items():
        with open(os.path.join(folder, os.path.basename(name)), "w", encoding="utf-8") as handle:
            handle.write(text)
    path = os.path.join(folder, "_program.py")
    with open(path, "w", encoding="utf-8") as handle:
        handle.write(given["program"])
    sys.path.insert(0, folder)
    sys.argv = [path]
    return path, given["program"]


def probe(request: dict[str, Any], descriptors: list[int]) -> bytes:
    """Runs the self-test's attacks from inside; answers which ones were blocked."""
    from evaluator.sandbox import attacks

    return json.dumps({"attacks": attacks.run_all(request["facts"])}).encode()
