"""The commands of docker-compose.yml, run as plain processes against a real PostgreSQL and Redis.

No container engine is needed, so this shows that the commands, their order and the health checks work together; it
shows nothing about images, networks or mounts.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import servers
from tests.test_compose import REPOSITORY, compose

PROGRAMS = Path(sys.executable).parent


def command_of(service: str, port: int) -> list[str]:
    """The command of a service, on a port of this test's own and on loopback."""
    here = {"8000": str(port), "0.0.0.0": "127.0.0.1"}
    program, *arguments = (here.get(word, word) for word in compose()["services"][service]["command"])
    return [str(PROGRAMS / program), *arguments]


@contextmanager
def running(command: list[str], environment: dict[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a service until the block ends; a service that ends by itself is an error."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=REPOSITORY, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
    try:
        yield process
        assert process.poll() is None, log.read_text(errors="replace")
    finally:
        process.terminate()
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for(
    answers: Callable[[], bool], seconds: float, process: subprocess.Popen[bytes], log: Path
) -> None:
    """Wait until something holds, and show the log of a service that ended or never got there."""
    deadline = time.monotonic() + seconds
    while not answers():
        if time.monotonic() > deadline or process.poll() is not None:
            pytest.fail(f"{process.args}: exit {process.poll()}\n{log.read_text(errors='replace')}")
        time.sleep(0.5)


@pytest.mark.slow
@pytest.mark.services("redis", "postgres")
def test_services_become_healthy_together(tmp_path: Path, redis_url: str, postgres_url: str) -> None:
    port = servers.free_port()
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("KERNELWRIGHT_")},
        "PATH": f"{PROGRAMS}:{os.environ['PATH']}",
        "KERNELWRIGHT_DATABASE_URL": postgres_url,
        "KERNELWRIGHT_BROKER_URL": redis_url,
        "KERNELWRIGHT_DATA_DIR": str(tmp_path / "data"),
        **{
            name: value
            for name, value in compose()["services"]["worker-cpu"]["environment"].items()
            if name == "KERNELWRIGHT_DEVICE"
        },
    }
    subprocess.run(
        command_of("migrate", port), cwd=REPOSITORY, env=environment, check=True, capture_output=True
    )

    ready = [
        word.replace(":8000", f":{port}") for word in compose()["services"]["api"]["healthcheck"]["test"][1:]
    ]
    ping = ["sh", "-c", compose()["services"]["worker-cpu"]["healthcheck"]["test"][1].replace("$$", "$")]

    def passes(health_check: list[str]) -> bool:
        done = subprocess.run(health_check, cwd=REPOSITORY, env=environment, capture_output=True, check=False)
        return done.returncode == 0

    api_log, worker_log = tmp_path / "api.log", tmp_path / "worker.log"
    with running(command_of("api", port), environment, api_log) as api:
        wait_for(lambda: servers.port_answers(port), 60, api, api_log)
        assert not passes(ready), "ready without a worker whose sandbox held its own attacks"
        with running(command_of("worker-cpu", port), environment, worker_log) as worker:
            wait_for(lambda: passes(ready), 180, worker, worker_log)
            wait_for(lambda: passes(ping), 60, worker, worker_log)
