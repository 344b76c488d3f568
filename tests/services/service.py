"""A `kernelwright serve` of a test's own: a real process on a real port, with the real referee behind it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx

from tests.services.forked import Forked

ROOT = Path(__file__).resolve().parents[2]
FINAL = ("succeeded", "failed", "cancelled")
START_SECONDS = 60.0

# As small as a task can be: two shapes matter here, not the arithmetic.
TINY_TASK = '''\
"""Scale and shift."""

import torch
from torch import nn

from kernelbench_tasks import Dim

DIMS = {"rows": Dim(1, 64, default=8), "cols": Dim(8, 128, multiple_of=8, default=32)}


class Model(nn.Module):
    def __init__(self, cols=32):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(cols))

    def forward(self, x):
        # As a loop over rows the library would have a candidate for it.
        return torch.relu(x) * self.weight + torch.ones_like(self.weight)


def get_inputs(rows=8, cols=32):
    return [torch.randn(rows, cols)]


def get_init_inputs(cols=32):
    return [cols]
'''

_CANDIDATE = """\
import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, cols=32):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(cols))

    def forward(self, x):
        {body}
"""


def candidate(body: str) -> str:
    """A candidate file for `TINY_TASK` whose forward is `body`."""
    return _CANDIDATE.format(body=body)


CORRECT = candidate("return torch.relu(x) * self.weight + 1.0")
# Sorting again is work that no compiler notices: what sorts once is certainly faster, on a noisy machine too.
OFTEN_TASK = TINY_TASK.replace(
    "return torch.relu(x)",
    "for _ in range(8): x = torch.sort(x.flip(1), dim=1).values\n        return torch.relu(x)",
)
ONCE = candidate("return torch.relu(torch.sort(x, dim=1).values) * self.weight + 1.0")
WRONG = candidate("return torch.relu(x) * self.weight")
ENDLESS = candidate("while True: pass")
UNPARSABLE = "class ModelNew(:\n"


# One of each: what a test of the service needs to be timed at, since every shape costs a compilation.
FEW_SHAPES = {
    "visible": [{"rows": 8, "cols": 32}],
    "validation": [{"rows": 16, "cols": 32}],
    "held_out": [{"rows": 24, "cols": 64}],
    "adversarial": [{"rows": 1, "cols": 8}],
}


class Service:
    """Starts, kills and asks a service.

    Args:
        data_dir: its data folder; a second `Service` on the same folder resumes.
        options: further arguments of `serve`.
        environment: further environment variables.
        program: the module that is run in place of the command line.
        afresh: whether it is a start of Python as a user's, not a fork (`tests.services.forked`).
    """

    def __init__(
        self,
        data_dir: Path,
        *options: str,
        environment: Mapping[str, str] | None = None,
        program: str = "services.cli",
        afresh: bool = False,
    ) -> None:
        self.data_dir = data_dir
        self._options = options
        self._program = program
        # Celery's application, which a fork has imported, keeps the broker that it was made with.
        self._afresh = afresh or "KERNELWRIGHT_BROKER_URL" in (environment or {})
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("KERNELWRIGHT_")},
            "KERNELWRIGHT_DATA_DIR": str(data_dir),
            "PYTHONUNBUFFERED": "1",
            "KERNELWRIGHT_COMPILE_AHEAD": "0",
            **(environment or {}),
        }
        self.log = data_dir / "serve.log"
        self.url = ""
        self.process: subprocess.Popen[bytes] | Forked | None = None
        self.client = httpx.Client(timeout=30)

    def __enter__(self) -> Service:
        self.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.stop()
        self.end()

    def end(self) -> None:
        """Leave nothing behind, whatever state it is in."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self.client.close()

    def start(self) -> None:
        """Start and wait until it answers."""
        self.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        words = ["serve", "--port", "0", *self._options]
        begin = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            if self._afresh:
                command = [sys.executable, "-m", self._program, *words]
                self.process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment, cwd=ROOT
                )
            else:
                self.process = Forked(self._program, words, self.environment, log, log)
        deadline = time.monotonic() + START_SECONDS
        while True:
            text = self.log.read_bytes()[begin:].decode(errors="replace")
            if "Kernelwright is at " in text:
                self.url = text.split("Kernelwright is at ")[1].split()[0].rstrip("/")
                return
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the service did not start:\n{text}")
            time.sleep(0.05)

    def stop(self) -> int:
        """Ask it to stop; its exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise

    def kill(self) -> list[int]:
        """SIGKILL the service's process and nothing else; returns the pids that descended from it."""
        assert self.process is not None
        below = descendants(self.process.pid)
        self.process.kill()
        self.process.wait()
        return below

    def get(self, path: str, **options: Any) -> httpx.Response:
        """GET."""
        return self._ask("GET", path, **options)

    def post(self, path: str, body: Any = None, **options: Any) -> httpx.Response:
        """POST a JSON body."""
        return self._ask("POST", path, json=body, **options)

    def _ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            return self.client.request(method, self.url + path, **options)
        except httpx.ConnectError as error:
            assert self.process is not None
            raise AssertionError(f"the service is gone ({self.process.poll()}): {self.log_tail()}") from error

    def submit(self, **body: Any) -> str:
        """POST /optimize; the job's id."""
        response = self.post("/optimize", body)
        assert response.status_code == 202, response.text
        return str(response.json()["id"])

    def job(self, job_id: str) -> dict[str, Any]:
        """GET /jobs/{id}."""
        response = self.get(f"/jobs/{job_id}")
        assert response.status_code == 200, response.text
        return dict(response.json())

    def candidates(self, job_id: str) -> list[dict[str, Any]]:
        """GET /jobs/{id}/candidates."""
        return list(self.get(f"/jobs/{job_id}/candidates").json()["data"])

    def events(self, job_id: str) -> list[dict[str, Any]]:
        """All events of a job."""
        found: list[dict[str, Any]] = []
        while True:
            after = found[-1]["id"] if found else 0
            page = self.get(f"/jobs/{job_id}/events?limit=500&after={after}").json()
            found += page["data"]
            if not page["has_more"]:
                return found

    def wait_for(self, job_id: str, seconds: float = 120.0) -> dict[str, Any]:
        """The job once it has ended."""
        job: dict[str, Any] = {}

        def ended() -> bool:
            nonlocal job
            job = self.job(job_id)
            return job["state"] in FINAL

        wait_until(ended, seconds, lambda: f"job is {job}\n{self.log_tail()}")
        return job

    def wait_until_ready(self, seconds: float = 60.0) -> dict[str, Any]:
        """The answer of /readyz once it is green."""
        wait_until(lambda: self.get("/readyz").status_code == 200, seconds, lambda: self.get("/readyz").text)
        return dict(self.get("/readyz").json())

    def stream(self, job_id: str, last_event_id: int | None = None) -> Iterator[dict[str, Any]]:
        """Events of a job as server-sent events, until the service ends the stream."""
        headers = {"Accept": "text/event-stream"}
        if last_event_id is not None:
            headers["Last-Event-ID"] = str(last_event_id)
        with self.client.stream(
            "GET", f"{self.url}/jobs/{job_id}/events", headers=headers, timeout=120
        ) as response:
            assert response.status_code == 200, response.status_code
            assert response.headers["content-type"].startswith("text/event-stream")
            for line in response.iter_lines():
                if line.startswith("data: "):
                    yield json.loads(line.removeprefix("data: "))

    def log_tail(self) -> str:
        """The end of the service's log, for a failure's message."""
        return self.log.read_text(errors="replace")[-4000:]


def wait_until(condition: Callable[[], bool], seconds: float, explain: Callable[[], str]) -> None:
    """Wait for `condition`; fails with what `explain` says when it does not come true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {explain()}"
        time.sleep(0.05)


def descendants(pid: int) -> list[int]:
    """Pids of all processes below `pid` at this moment."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, unseen = [], [pid]
    while unseen:
        below = children.get(unseen.pop(), [])
        found += below
        unseen += below
    return found


def is_alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
