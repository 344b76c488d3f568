"""The demo's steps against a running service, all over HTTP."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from services.client import FINAL_STATES, CandidateRequest, Client, JobView, OptimizeRequest
from services.commands.showing import Following, leaderboard
from services.dashboard import formats, words
from services.demo import cheat
from services.demo.serving import START_WITHIN_S, DemoFailed
from services.plain_text import plain_line

JUDGE_WITHIN_S = 300.0
REPRODUCE_WITHIN_S = 600.0
_POLL_S = 0.25


class Demo:
    """One run of the demo against a running service.

    Args:
        client: the client of the service.
        folder: where to store the bundle.
        console: where to print.
    """

    def __init__(self, client: Client, folder: Path, console: Console) -> None:
        self._client = client
        self._folder = folder
        self._console = console
        self.first_accepted_s: float | None = None  # after the job was posted

    def wait_until_ready(self) -> str:
        """Wait for the worker's self-check; return the sandbox tier in use."""
        deadline = time.monotonic() + START_WITHIN_S
        while True:
            answer = httpx.get(f"{self._client.url}/readyz", timeout=60.0)
            sandbox = answer.json()["checks"]["sandbox"]
            if answer.is_success:
                return str(sandbox["tier"])
            is_final = sandbox.get("problem") not in ("being checked", "no worker is alive")
            if is_final or time.monotonic() > deadline:
                raise DemoFailed(f"the service is not ready: {_what_is_missing(answer.json())}")
            time.sleep(_POLL_S)

    def clear_leftovers(self) -> None:
        """Cancel jobs left by an interrupted demo, which would compete for the processor."""
        for job in self._client.jobs(limit=20):
            if job.state not in FINAL_STATES:
                self._client.cancel(job.id)

    def optimize(self, request: OptimizeRequest) -> JobView:
        """Submit the task, follow the job to its end, and return it.

        Raises:
            DemoFailed: the job ended without a bundle.
        """
        job = self._client.submit(request)
        self._say(f"Job {job.id}: {self._client.url}{job.urls.dashboard}")
        with Following(self._console, chatty=True) as following:
            for event in self._client.watch(job.id):
                following.tell(event)
                if event.name == "candidate.judged":
                    if event.data["verdict"] == "accepted":
                        self.first_accepted_s = self.first_accepted_s or following.elapsed_s
                    following.board = self._leaderboard(job.id)
        job = self._client.wait(job.id)
        if job.state != "succeeded":
            word = words.verdict(job.verdict).label if job.verdict else job.state
            raise DemoFailed(f"the job ended as {job.state} ({word}): {plain_line(job.reason)}")
        return job

    def show_result(self, job: JobView) -> None:
        """Print the leaderboard and the held-out result."""
        summary: dict[str, Any] = job.summary or {}
        self._console.print(self._leaderboard(job.id, job.winner.sha256 if job.winner else None))
        origin = words.origin(job.winner.origin if job.winner else None)
        facts = Table.grid(padding=(0, 2))
        for name, value in (
            ("winner", plain_line(job.winner.label if job.winner else "none")),
            ("origin", f"{origin.label}. {origin.sentence}"),
            ("speedup on held-out shapes", formats.speedup(summary.get("geomean_speedup"))),
            ("its 95 % interval", formats.interval(summary.get("geomean_ci95"))),
            ("worst held-out shape", formats.speedup(summary.get("worst_speedup"))),
            ("confidently slower at", f"{formats.percent(summary.get('share_slower'))} of held-out shapes"),
        ):
            facts.add_row(Text(name, style="dim"), Text(value))
        title = "Held-out shapes, against the best baseline at each (geometric mean)"
        self._console.print(Panel(facts, title=title, title_align="left"))

    def fetch_bundle(self, job: JobView) -> Path:
        """Save the job's zip and return its path."""
        return self._client.fetch(job.id, self._folder / f"{_file_name(job.name)}-{job.id[-8:]}.zip")

    def reproduce(self, bundle: Path) -> None:
        """Unpack the bundle elsewhere and run its reproduce.py in a new, isolated process.

        Raises:
            DemoFailed: the exit code was not 0.
        """
        unpacked = bundle.with_suffix("")
        with zipfile.ZipFile(bundle) as archive:
            archive.extractall(unpacked)
        script = next(iter(sorted(unpacked.rglob("reproduce.py"))), None)
        if script is None:
            raise DemoFailed(f"{bundle} holds no reproduce.py")
        kept = {
            name: os.environ[name]
            for name in ("PATH", "LANG", "LC_ALL", "HOME", "TMPDIR")
            if name in os.environ
        }
        with tempfile.TemporaryDirectory(prefix="kernelwright-elsewhere-") as elsewhere:
            done = subprocess.run(
                [sys.executable, "-I", str(script.resolve())],
                cwd=elsewhere,
                env=kept,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=REPRODUCE_WITHIN_S,
                check=False,
            )
        for line in done.stdout.splitlines():
            self._console.print(Text("  " + plain_line(line)), soft_wrap=True)
        if done.returncode != 0:
            raise DemoFailed(f"reproduce.py of the bundle ended with exit code {done.returncode}")

    def show_cheat(self, job: JobView, task_source: str) -> None:
        """Submit a cheating candidate to the finished job and show the verdict.

        Raises:
            DemoFailed: the referee did not reject it.
        """
        self._say(cheat.IN_WORDS)
        source = cheat.cheating_candidate(task_source)
        request = CandidateRequest(candidate=source, label="replays its first output")
        added = self._client.add_candidate(job.id, request)
        deadline = time.monotonic() + JUDGE_WITHIN_S
        while added.verdict is None:
            if time.monotonic() > deadline:
                raise DemoFailed(f"the cheating candidate was not judged within {JUDGE_WITHIN_S:.0f} s")
            time.sleep(_POLL_S)
            added = next(one for one in self._client.candidates(job.id) if one.id == added.id)
        said = Text.assemble("verdict: ", (words.verdict(added.verdict).label, "bold red"))
        said.append(f"\n{plain_line(added.reason)}")
        for finding in added.findings:
            rule, evidence = finding.get("rule"), finding.get("evidence")
            said.append(f"\nfinding: {plain_line(rule)}, it {words.rule(rule)}", style="dim")
            said.append("" if evidence == added.reason else f"\n{plain_line(evidence)}", style="dim")
        self._console.print(Panel(said, title="The referee on the cheating candidate", title_align="left"))
        if added.verdict in ("accepted", "not_judged"):
            raise DemoFailed(f"the cheating candidate was not turned down, the verdict is {added.verdict!r}")

    def _leaderboard(self, job_id: str, winner_sha256: str | None = None) -> Table:
        return leaderboard(
            [one.model_dump(mode="json") for one in self._client.candidates(job_id)], winner_sha256
        )

    def _say(self, text: str) -> None:
        self._console.print(Text(plain_line(text)))


def _what_is_missing(readiness: Mapping[str, Any]) -> str:
    missing = []
    for name, check in readiness["checks"].items():
        if not check["ok"]:
            missing.append(f"{name}: {check.get('problem')}")
            missing += [
                f"worker for {one['device']}: {one['problem']}"
                for one in check.get("workers", [])
                if one["problem"]
            ]
    return plain_line("; ".join(missing))


def _file_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-") or "bundle"
