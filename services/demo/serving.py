"""Starts and stops the demo's service."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

START_WITHIN_S = 180.0
STOP_WITHIN_S = 30.0
_POLL_S = 0.25
# The demo must not write to a database configured in the shell's environment.
_MOVES_THE_DATA = ("KERNELWRIGHT_DATABASE_URL", "KERNELWRIGHT_BROKER_URL", "KERNELWRIGHT_DATA_DIR")


class DemoFailed(Exception):
    """A part of the demo failed; `str()` is a sentence for the user."""


@contextmanager
def running_service(data_dir: Path) -> Iterator[str]:
    """Run `kernelwright serve` on a free loopback port during the block; yields its address.

    Raises:
        DemoFailed: the service did not start; the message includes the end of its log.
    """
    log = data_dir / "service.log"
    environment = {name: value for name, value in os.environ.items() if name not in _MOVES_THE_DATA}
    environment.update(KERNELWRIGHT_DATA_DIR=str(data_dir), PYTHONUNBUFFERED="1")
    serve = "from services.cli import main; main()"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", serve, "serve", "--port", "0"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,  # Ctrl-C reaches only the demo, which then stops the service cleanly
        )
    try:
        yield _wait_for_address(process, log)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait_for_address(process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + START_WITHIN_S
    while time.monotonic() < deadline:
        text = log.read_text(errors="replace")
        found = re.search(r"Kernelwright is at (http://\S+?)/?\s", text)
        if found:
            return found.group(1)
        if process.poll() is not None:
            raise DemoFailed(f"the service ended at once with exit code {process.returncode}:\n{_tail(text)}")
        time.sleep(_POLL_S)
    raise DemoFailed(
        f"the service said nothing for {START_WITHIN_S:.0f} s:\n{_tail(log.read_text(errors='replace'))}"
    )


def _tail(text: str) -> str:
    return "\n".join(text.splitlines()[-15:])
