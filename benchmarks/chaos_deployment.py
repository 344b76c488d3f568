"""What a storm rages over (`benchmarks.service_chaos`): servers and workers as real processes, and what is done to them."""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from services.db.session import Database
from tests import servers
from tests.services.service import ROOT, Service, descendants

_SCRIPTED = "benchmarks.scripted_service"
_WHOLE_MACHINE_EVERY = 8


class Restartable:
    """A server program that can be killed and started again where it was."""

    def __init__(self, program: servers.Program) -> None:
        self.program = program
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start and wait until it answers."""
        with self.program.log.open("ab") as log:
            self._process = subprocess.Popen(
                list(map(str, self.program.command)), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, user=self.program.user, cwd="/",
                group=self.program.user, extra_groups=[] if self.program.user is not None else None,
            )  # fmt: skip
        servers.wait_until(self.program.answers, self._process, self.program.log)

    def stop(self, number: signal.Signals) -> None:
        """Stop by a signal; SIGQUIT is PostgreSQL's immediate shutdown: no checkpoint, no farewell to clients."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(timeout=60)


class Worker:
    """One worker as on a machine of its own: its own data folder, and a restart when all of it is gone."""

    def __init__(self, folder: Path, environment: dict[str, str], command: Sequence[str]) -> None:
        self._folder, self._command = folder, command
        self._environment = {**environment, "KERNELWRIGHT_DATA_DIR": str(folder)}
        folder.mkdir(mode=0o700)
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with (self._folder / "worker.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", _SCRIPTED, *self._command],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment, cwd=ROOT,
            )  # fmt: skip

    def working(self) -> list[int]:
        """Pids of the processes that work: below the supervisor, or the one itself where there is none."""
        return [self.process.pid] if self._command == ["celery"] else descendants(self.process.pid)

    def kill(self, *, whole: bool) -> None:
        """SIGKILL the working process; or supervisor and all, which is started anew as a container would be."""
        victims = self.working()
        if whole or self.process.pid in victims:
            victims = [self.process.pid, *victims]
        for pid in dict.fromkeys(victims):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if self.process.pid in victims:
            self.process.wait()
            self.process = self._start()

    def stop(self) -> None:
        """Ask it to stop, then make it."""
        self.process.terminate()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            for pid in (*descendants(self.process.pid), self.process.pid):
                os.kill(pid, signal.SIGKILL)
            self.process.wait()


@dataclass(frozen=True)
class Weather:
    """How often what happens; each interval is half to one and a half of what is said.

    Attributes:
        kill_every_s: SIGKILL of a worker.
        redis_every_s: Redis is flushed, or killed and started again, in turn.
        postgres_every_s: PostgreSQL is stopped at once, and started after `postgres_away_s`.
        kills: at most so many; None for no end.
        shakes: at most so many of Redis and as many of PostgreSQL.
    """

    kill_every_s: float = 2.0
    redis_every_s: float = 15.0
    postgres_every_s: float = 40.0
    postgres_away_s: float = 2.0
    kills: int | None = None
    shakes: int | None = None


class Storm:
    """Threads that each do one kind of harm every so often, until the block ends."""

    def __init__(self, weather: Weather) -> None:
        self.weather = weather
        self.done: Counter[str] = Counter()
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []
        self.faults: list[str] = []

    def every(self, seconds: float, harm: Callable[[], str], times: int | None = None) -> None:
        """Do `harm` every so many seconds, half to one and a half, at most so many times; it says what it did."""

        def rage() -> None:
            drawn, left = random.Random(), times if times is not None else 10**9
            while left and not self._over.wait(seconds * drawn.uniform(0.5, 1.5)):
                left -= 1
                try:
                    self.done[harm()] += 1
                except Exception as error:  # noqa: BLE001 - a storm that ends by itself must be seen
                    self.faults.append(repr(error))
                    return

        self._threads.append(threading.Thread(target=rage, daemon=True))

    def __enter__(self) -> Storm:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()


@contextmanager
def deployment(
    folder: Path, workers: int, storm: Storm | None, variables: dict[str, str], by: str
) -> Iterator[tuple[Service, Database]]:
    """PostgreSQL, Redis, an API process and workers; `storm` is told what may be done to them."""
    with ExitStack() as stack:
        postgres = Restartable(stack.enter_context(servers.postgres_cluster()))
        stack.callback(postgres.stop, signal.SIGINT)
        postgres.start()
        redis = Restartable(servers.redis_program(folder))
        stack.callback(redis.stop, signal.SIGTERM)
        redis.start()
        environment = {
            **variables,
            "KERNELWRIGHT_DATABASE_URL": postgres.program.url,
            "KERNELWRIGHT_BROKER_URL": redis.program.url,
        }
        api = stack.enter_context(Service(folder / "api", "--no-worker", environment=environment))
        command = ["worker"] if by == "kernelwright" else ["celery"]
        fleet = [Worker(folder / f"worker-{n}", api.environment, command) for n in range(workers)]
        for one in fleet:
            stack.callback(one.stop)
        base = Database(postgres.program.url)
        stack.callback(base.close)
        api.wait_until_ready(120)
        if storm is not None:
            drawn, turns = random.Random(), itertools.count(1)

            def kill() -> str:
                up = [one for one in fleet if one.working()]
                if not up:
                    return "all workers were starting"
                whole = next(turns) % _WHOLE_MACHINE_EVERY == 0
                drawn.choice(up).kill(whole=whole)
                return "workers killed with their supervisor" if whole else "workers killed"

            def shake_redis() -> str:
                if next(turns) % 2:
                    subprocess.run(
                        ["redis-cli", "-u", redis.program.url, "FLUSHALL"], check=True, capture_output=True
                    )
                    return "Redis flushed"
                redis.stop(signal.SIGKILL)
                redis.start()
                return "Redis killed"

            def shake_postgres() -> str:
                postgres.stop(signal.SIGQUIT)
                time.sleep(storm.weather.postgres_away_s)
                postgres.start()
                return "PostgreSQL restarted"

            weather = storm.weather
            storm.every(weather.kill_every_s, kill, weather.kills)
            storm.every(weather.redis_every_s, shake_redis, weather.shakes)
            storm.every(weather.postgres_every_s, shake_postgres, weather.shakes)
        yield api, base


@contextmanager
def one_process(
    folder: Path, storm: Storm | None, variables: dict[str, str]
) -> Iterator[tuple[Service, Database]]:
    """`kernelwright serve` alone, on SQLite, always at the same port; killed some time after it answers again."""
    port = str(servers.free_port())
    options = ("--port", port)  # the later one counts
    with Service(folder / "data", *options, environment=variables, program=_SCRIPTED) as service:
        service.wait_until_ready(120)
        base = Database(f"sqlite:///{folder / 'data' / 'kernelwright.db'}")

        def kill() -> str:
            service.kill()
            service.start()
            return "the process killed"

        if storm is not None:
            storm.every(storm.weather.kill_every_s, kill, storm.weather.kills)
        yield service, base
        base.close()
