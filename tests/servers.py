"""Finds and starts the servers that tests need: each on a free loopback port, in a folder that goes away with it."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from http.server import HTTPServer
from pathlib import Path

START_SECONDS = 60.0


def chromium() -> Path | None:
    """Debian's browser, which Playwright drives; Playwright's own download is not needed."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    return Path(found) if found else None


def redis_server() -> Path | None:
    """The Redis server program."""
    found = shutil.which("redis-server")
    return Path(found) if found else None


def postgres_programs() -> Path | None:
    """The folder that holds initdb and postgres; Debian keeps it off PATH."""
    candidates = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name))
    on_path = shutil.which("initdb")
    if on_path:
        candidates.append(Path(on_path).resolve().parent)
    fitting = [path for path in candidates if (path / "initdb").exists() and (path / "postgres").exists()]
    return fitting[-1] if fitting else None


@cache
def has_nvidia_gpu() -> bool:
    """Whether the driver lists a GPU."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return False
    try:
        answer = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return answer.returncode == 0 and "GPU" in answer.stdout


@contextmanager
def serving(server: HTTPServer) -> Iterator[str]:
    """The URL of a server that answers in a thread. By default its end would be noticed only after half a second."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=5)


def free_port() -> int:
    """A loopback TCP port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_until(answers: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until a server answers.

    Raises:
        RuntimeError: it ended, or stayed silent for `START_SECONDS`; the text holds its log.
    """
    deadline = time.monotonic() + START_SECONDS
    while not answers():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the server did not start:\n{log.read_text(errors='replace')}")
        time.sleep(0.05)


def port_answers(port: int) -> bool:
    """Whether something accepts connections on a loopback port."""
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def running(
    command: Sequence[str | Path],
    log: Path,
    answers: Callable[[], bool],
    *,
    stop_signal: signal.Signals = signal.SIGTERM,
    user: int | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server in a process group of its own until the block ends; `user` is a uid to become."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            list(map(str, command)),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            user=user,
            group=pwd.getpwuid(user).pw_gid if user is not None else None,
            extra_groups=[] if user is not None else None,
            cwd="/",
        )
    try:
        wait_until(answers, process, log)
        yield process
    finally:
        process.send_signal(stop_signal)
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@dataclass(frozen=True)
class Program:
    """A server program with its arguments: what is started, and started again after it was killed.

    Attributes:
        command: program and arguments.
        url: where clients find it.
        log: what it says goes there.
        answers: whether it takes requests.
        user: uid to become, or None.
    """

    command: Sequence[str | Path]
    url: str
    log: Path
    answers: Callable[[], bool]
    user: int | None = None


def redis_program(folder: Path) -> Program:
    """A Redis that keeps nothing on disk, on a free port."""
    program = redis_server()
    assert program is not None, 'the test lacks @pytest.mark.services("redis")'
    port = free_port()
    options = f"--port {port} --bind 127.0.0.1 --appendonly no --maxmemory-policy noeviction".split()
    command = [program, *options, "--save", "", "--dir", folder]
    return Program(command, f"redis://127.0.0.1:{port}/0", folder / "redis.log", lambda: port_answers(port))


@contextmanager
def running_redis(folder: Path) -> Iterator[str]:
    """Run a Redis that keeps nothing on disk; yields its URL."""
    program = redis_program(folder)
    with running(program.command, program.log, program.answers):
        yield program.url


@contextmanager
def postgres_cluster(**options: str) -> Iterator[Program]:
    """Make a PostgreSQL cluster in a temporary folder, which goes away at the end; its URL is of an empty database.

    `options` are the server's, such as ``shared_buffers="1GB"``. PostgreSQL refuses to run as root: a root test run hands the folder and the server to the user `postgres`,
    which Debian's package makes, or to `nobody`.
    """
    programs = postgres_programs()
    assert programs is not None, 'the test lacks @pytest.mark.services("postgres")'
    user = _unprivileged_user() if os.geteuid() == 0 else None
    folder = Path(tempfile.mkdtemp(prefix="kernelwright-postgres-"))
    try:
        if user is not None:
            os.chown(folder, user, -1)
        data = folder / "data"
        initdb = [programs / "initdb", "--pgdata", data, "--username", "kernelwright", "--auth", "trust"]
        subprocess.run(
            [*map(str, initdb), "--encoding", "UTF8", "--locale", "C.UTF-8", "--no-sync"],
            check=True,
            capture_output=True,
            user=user,
            cwd="/",
        )
        port = free_port()
        # no fsync: the folder does not outlive the test
        settings = {"fsync": "off", **options}
        where = ["-h", "127.0.0.1", "-p", str(port), "-k", str(folder)]
        where += [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        ready = [str(programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)]
        yield Program(
            [programs / "postgres", "-D", data, *where],
            f"postgresql+psycopg://kernelwright@127.0.0.1:{port}/postgres",
            folder / "postgres.log",
            lambda: subprocess.run(ready, check=False).returncode == 0,
            user,
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def running_postgres(**options: str) -> Iterator[str]:
    """Make and run a PostgreSQL cluster in a temporary folder, with `options` of the server's; yields a SQLAlchemy URL of an empty database."""
    with (
        postgres_cluster(**options) as program,
        running(
            program.command,
            program.log,
            program.answers,
            stop_signal=signal.SIGINT,  # "fast" shutdown: does not wait for clients
            user=program.user,
        ),
    ):
        yield program.url


def _unprivileged_user() -> int:
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name).pw_uid
        except KeyError:
            continue
    raise RuntimeError("neither a user postgres nor nobody exists, and PostgreSQL does not run as root")
