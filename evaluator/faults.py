"""Unexpected internal errors: one sentence for the user, and the traceback in a file that the sentence names."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from evaluator.compiler_words import printable

FOLDER = "faults"
_LONGEST, _MOST_FILES = 300, 100
EXIT_FAULT = 2


def told(error: BaseException, work_dir: Path) -> str:
    """The sentence for an error. Its traceback is written below ``work_dir``."""
    first = printable(str(error)).strip().partition("\n")[0][:_LONGEST]
    words = f"{type(error).__name__}: {first}" if first else type(error).__name__
    return f"an internal error of Kernelwright ({words}); {_kept(error, work_dir / FOLDER)}"


def _kept(error: BaseException, folder: Path) -> str:
    """Where the traceback is, in words."""
    path = folder / f"{time.strftime('%Y-%m-%dT%H%M%S')}-{os.getpid()}-{time.monotonic_ns() % 10**9}.txt"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for old in sorted(folder.iterdir())[: 1 - _MOST_FILES]:
            old.unlink(missing_ok=True)
        path.write_text("".join(traceback.format_exception(error)), encoding="utf-8", errors="replace")
    except OSError as unwritten:
        place = traceback.extract_tb(error.__traceback__)[-1:]
        where = "".join(f", at {Path(frame.filename).name}:{frame.lineno}" for frame in place)
        return f"its traceback could not be written to {folder} ({unwritten.strerror}){where}"
    return f"please report it with {path}"


def guarded(command_line: Callable[[], object]) -> None:
    """Runs a command line. An unhandled error becomes a sentence and exit status 2.

    Raises:
        SystemExit: as the command line ends, or with status 2.
    """
    try:
        command_line()
    except Exception as error:  # noqa: BLE001 - that is the purpose
        from evaluator.folders import default_work_dir

        sys.stderr.write(told(error, default_work_dir()) + "\n")
        raise SystemExit(EXIT_FAULT) from None
