"""Programs of the service as forks of one process that has imported it, which takes longer than most of what they do.

What differs from a start of its own is how modules come in, so `tests.services.service.Service` can start afresh as well.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

ROOT = Path(__file__).resolve().parents[2]


class Forked:
    """A program that runs; of `subprocess.Popen` what tests need.

    Args:
        program: the module whose `main` is run.
        words: its arguments.
        environment: its environment, and nothing else of ours.
        stdout: a file with a descriptor.
        stderr: likewise.
    """

    def __init__(
        self,
        program: str,
        words: Sequence[str],
        environment: Mapping[str, str],
        stdout: IO[bytes],
        stderr: IO[bytes],
    ) -> None:
        self._told, its_end = socket.socketpair(type=socket.SOCK_SEQPACKET)
        request = json.dumps([program, list(words), dict(environment)]).encode()
        with its_end:
            files = [stdout.fileno(), stderr.fileno(), its_end.fileno()]
            socket.send_fds(_parent(), [request], files)
        self.pid = int(self._told.recv(16))
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit code once it has ended."""
        try:
            return self.wait(timeout=0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code.

        Raises:
            subprocess.TimeoutExpired: it still runs.
        """
        if self.returncode is None:
            self._told.settimeout(timeout)
            try:
                self.returncode = int(self._told.recv(16))
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0) from None
            self._told.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


def run(
    program: str, words: Sequence[str], environment: Mapping[str, str], *, timeout: float
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, as `subprocess.run` does."""
    with TemporaryFile() as stdout, TemporaryFile() as stderr:
        process = Forked(program, words, environment, stdout, stderr)
        try:
            code = process.wait(timeout)
        finally:
            process.kill()
        said = [(file.seek(0), file.read().decode())[1] for file in (stdout, stderr)]
    return subprocess.CompletedProcess([program, *words], code, *said)


@cache
def _parent() -> socket.socket:
    """A connection to the process that forks; it ends with this one."""
    ours, its = socket.socketpair(type=socket.SOCK_SEQPACKET)
    bare = {name: value for name, value in os.environ.items() if not name.startswith("KERNELWRIGHT_")}
    process = subprocess.Popen([sys.executable, "-m", __name__], stdin=its, cwd=ROOT, env=bare)
    its.close()

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def _fork_on_request() -> None:
    """Fork for each request until the connection closes. Each fork has a parent of its own, which tells how it ended."""
    for module in ("services.cli", "services.application"):
        importlib.import_module(module)
    from services.settings import get_settings

    get_settings.cache_clear()  # an import has asked for them
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    asked = socket.socket(fileno=sys.stdin.fileno())
    while True:
        request, files, _, _ = socket.recv_fds(asked, 1 << 20, 3)
        if not request:
            return
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            stdout, stderr, told = files
            if (pid := os.fork()) == 0:
                os.close(told)
                _run(json.loads(request), stdout, stderr)
                return
            os.write(told, b"%d" % pid)
            os.write(told, b"%d" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
            os._exit(0)
        for descriptor in files:
            os.close(descriptor)


def _run(request: tuple[str, list[str], dict[str, str]], stdout: int, stderr: int) -> None:
    program, words, environment = request
    for ours, standard in ((os.open(os.devnull, os.O_RDONLY), 0), (stdout, 1), (stderr, 2)):
        os.dup2(ours, standard)
        os.close(ours)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [program, *words]
    importlib.import_module(program).main()


if __name__ == "__main__":
    _fork_on_request()
