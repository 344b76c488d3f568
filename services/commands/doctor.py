"""`kernelwright doctor`: what this machine has and lacks."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from collections.abc import Iterator
from importlib import metadata

import typer
from rich.console import Console
from rich.table import Table

_TIMEOUT_S = 20


def doctor() -> None:
    """Check what is needed here: sandbox, compiler, torch, GPU, database. Exit code 1 when something needed is missing."""
    table = Table("", "what", "found")
    missing = False
    for needed, name, ok, text in _checks():
        missing |= needed and not ok
        table.add_row("[green]ok[/]" if ok else "[red]no[/]" if needed else "[yellow]-[/]", name, text)
    Console().print(table)
    raise typer.Exit(1 if missing else 0)


def _checks() -> Iterator[tuple[bool, str, bool, str]]:
    """(needed, name, ok, found) of each check."""
    yield True, "torch", *_package("torch")
    yield False, "triton", *_package("triton")
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    yield (
        True,
        "C++ compiler",
        compiler is not None,
        compiler or "none: torch.compile and C++ kernels need one",
    )
    yield True, "sandbox", *_sandbox()
    yield False, "GPU", *_gpu()
    yield True, "database", *_database()


def _package(name: str) -> tuple[bool, str]:
    # the version is read from the package's metadata: this process never imports torch
    if importlib.util.find_spec(name) is None:
        return False, "not installed"
    return True, metadata.version(name)


def _sandbox() -> tuple[bool, str]:
    from evaluator.client import Referee
    from evaluator.errors import EvaluatorError
    from services.settings import get_settings

    settings = get_settings()
    try:
        with Referee("cpu", minimum_tier=settings.minimum_tier) as referee:
            check = referee.self_check()
    except EvaluatorError as error:
        return False, str(error)
    open_attacks = [attack["name"] for attack in check["attacks"] if not attack["blocked"]]
    if open_attacks:
        return False, f"tier {check['tier']}, open to: {', '.join(open_attacks)}"
    return True, f"tier {check['tier']}, {len(check['attacks'])} attacks on it blocked"


def _gpu() -> tuple[bool, str]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return False, "no nvidia-smi; work is done on the CPU"
    query = [program, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    return done.returncode == 0, (done.stdout or done.stderr).strip()


def _database() -> tuple[bool, str]:
    from sqlalchemy.exc import SQLAlchemyError

    from services.db.session import database
    from services.db.upgrade import upgrade
    from services.settings import get_settings

    base = database(get_settings().database)
    shown = base.engine.url.render_as_string(hide_password=True)
    try:
        upgrade(base)
    except SQLAlchemyError as error:
        return False, f"{shown}: {type(error).__name__}"
    return True, shown
