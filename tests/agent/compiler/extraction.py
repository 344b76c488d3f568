"""Runs the capture program and candidates the way the sandbox does, in processes of their own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
PROGRAM = ROOT / "agent" / "compiler" / "sandboxed" / "capture_program.py"


def task_text(name: str) -> str:
    """A task of this folder."""
    return (HERE / "tasks" / f"{name}.py").read_text()


def capture_text(
    folder: Path,
    reference: str,
    dims: dict[str, Any],
    device: str = "cpu",
    files: dict[str, str] | None = None,
    own: dict[str, int] | None = None,
) -> bytes:
    """What the capture program writes for a reference, beside further files."""
    folder.mkdir(parents=True)
    for name, text in (files or {}).items():
        (folder / name).write_text(text)
    shutil.copy(PROGRAM, folder)
    (folder / "reference.py").write_text(reference)
    (folder / "request.json").write_text(json.dumps({"dims": dims, "device": device, "own": own or {}}))
    done = subprocess.run(
        [sys.executable, PROGRAM.name],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    written = folder / "out" / "capture.json"
    assert written.exists(), done.stderr[-3000:]
    return written.read_bytes()


def run_program(folder: Path, program: str, *arguments: str) -> dict[str, Any]:
    """The JSON that a program prints last; it runs in `folder` with its own extension cache."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "TORCH_EXTENSIONS_DIR": str(folder / "extensions"),
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        },
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer
