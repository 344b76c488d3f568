"""Runs the capture program and extracted candidates the way the sandbox does, in processes of their own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from agent.compiler.capture import Capture, read_capture

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
SANDBOXED = ROOT / "agent" / "compiler" / "sandboxed"

DIMS: dict[str, dict[str, Any]] = {
    "layernorm_relu_add": {
        "rows": {"min": 1, "max": 16384, "multiple_of": 1, "default": 512},
        "cols": {"min": 8, "max": 8192, "multiple_of": 1, "default": 1024},
    },
    "softmax": {
        "rows": {"min": 1, "max": 16384, "multiple_of": 1, "default": 512},
        "cols": {"min": 8, "max": 4096, "multiple_of": 1, "default": 1024},
        "dtype": {"choices": ["float32", "bfloat16"], "default": "float32"},
    },
    "swiglu": {
        "rows": {"min": 1, "max": 4096, "multiple_of": 1, "default": 256},
        "width": {"min": 16, "max": 2048, "multiple_of": 8, "default": 256},
    },
    "matmul_bias_relu": {
        "rows": {"min": 1, "max": 4096, "multiple_of": 1, "default": 256},
        "inner": {"min": 8, "max": 2048, "multiple_of": 1, "default": 256},
        "outer": {"min": 8, "max": 2048, "multiple_of": 1, "default": 512},
    },
}


def task_text(name: str) -> str:
    """A task of this folder."""
    return (HERE / "tasks" / f"{name}.py").read_text()


def recorded(name: str, device: str) -> Capture:
    """A capture recorded from Inductor of torch 2.13 (`cuda`: with fake tensors, on a machine without a GPU)."""
    return read_capture((HERE / "data" / f"{name}.{device}.json").read_bytes())


def capture_text(folder: Path, reference: str, dims: dict[str, Any], device: str = "cpu") -> bytes:
    """What the capture program writes for a reference."""
    folder.mkdir(parents=True)
    for program in ("capture_program.py", "symbolic_trace.py"):
        shutil.copy(SANDBOXED / program, folder)
    (folder / "reference.py").write_text(reference)
    request = {"dims": dims, "device": device, "settings": {}, "variance_by_row": device == "cpu"}
    (folder / "request.json").write_text(json.dumps(request))
    done = subprocess.run(
        [sys.executable, "capture_program.py"],
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
