"""Runs the capture program and candidates the way the sandbox does, in processes of their own."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from tests.agent import programs

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
    done = _done(folder, PROGRAM.name, environment={"TMPDIR": str(folder)})
    written = folder / "out" / "capture.json"
    assert written.exists(), done.stderr[-3000:]
    return written.read_bytes()


def run_program(folder: Path, program: str, *arguments: str) -> dict[str, Any]:
    """The JSON that a program prints last; it runs in `folder` with its own extension cache."""
    (folder / "program.py").write_text(program)
    caches = {"TORCH_EXTENSIONS_DIR": "extensions", "TORCHINDUCTOR_CACHE_DIR": "inductor"}
    environment = {name: str(folder / cache) for name, cache in caches.items()}
    modules = programs.INTERPRETED if "TRITON_INTERPRET" in program else programs.COMPILER
    done = _done(folder, "program.py", *arguments, environment=environment, modules=modules)
    assert done.returncode == 0, done.stderr[-3000:]
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def names_bound_in_calls(source: str) -> set[str]:
    """What `ModelNew` binds, without an underscore, in methods that take the caller's arguments by their names: one may have it."""
    model = next(
        node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == "ModelNew"
    )
    methods = [
        one for one in model.body if isinstance(one, ast.FunctionDef) and one.name.startswith("forward")
    ]
    assert methods
    bound = (
        node
        for one in methods
        for node in ast.walk(one)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    )
    return {node.id for node in bound if not node.id.startswith("_")}


def _done(
    folder: Path, *words: str, environment: dict[str, str], modules: Sequence[str] = programs.COMPILER
) -> subprocess.CompletedProcess[str]:
    if not torch.cuda.is_available():
        return programs.run(folder, *words, modules=modules, environment=environment)
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
