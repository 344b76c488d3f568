"""What the demo does with a running service, step by step. All of it goes over HTTP."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from services.client import FINAL_STATES, Client
from services.commands.showing import event_line, leaderboard
from services.dashboard import event_text, formats, words
from services.demo import cheat
from services.demo.serving import START_WITHIN_S, DemoFailed
from services.plain_text import plain_line

JUDGE_WITHIN_S = 300.0
REPRODUCE_WITHIN_S = 600.0
SAY_EVERY_S = 5.0  # where nothing is redrawn, a line after so much silence says that it goes on
_POLL_S = 0.25


class Demo:
    """One run of the demo against a running service.

    Args:
        client: talks to the service.
        folder: where the bundle is kept.
        console: where to print.
        is_live: redraw the leaderboard in place; plain lines otherwise.
    """

    def __init__(self, client: httpx.Client, folder: Path, console: Console, *, is_live: bool) -> None:
        self._client = client
        self._folder = folder
        self._console = console
        self._is_live = is_live
        self.first_accepted_s: float | None = None  # after the job was posted

    def wait_until_ready(self) -> str:
        """Waits for the worker's self-check; returns the sandbox tier in force."""
        deadline = time.monotonic() + START_WITHIN_S
        while True:
            answer = self._client.get("/readyz")
            sandbox = answer.json()["checks"]["sandbox"]
            if answer.is_success:
                return str(sandbox["tier"])
            is_final = sandbox.get("problem") not in ("being checked", "no worker is alive")
            if is_final or time.monotonic() > deadline:
                raise DemoFailed(f"the service is not ready: {_what_is_missing(answer.json())}")
            time.sleep(_POLL_S)

    def clear_leftovers(self) -> None:
        """Cancels jobs of an earlier demo that was interrupted: they would take this one's processor."""
        for job in self._ask("GET", "/jobs")["data"]:
            if job["state"] not in FINAL_STATES:
                self._ask("POST", f"/jobs/{job['id']}/cancel")

    def optimize(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """POSTs the task, follows the job to its end, and returns it.

        Raises:
            DemoFailed: the job was refused or ended without a bundle.
        """
        job = self._ask("POST", "/optimize", json=dict(fields))
        self._say(f"Job {job['id']}: {self._client.base_url.join(job['urls']['dashboard'])}")
        self._follow(job["id"])
        job = self._ask("GET", f"/jobs/{job['id']}")
        while job["state"] not in FINAL_STATES:
            time.sleep(_POLL_S)
            job = self._ask("GET", f"/jobs/{job['id']}")
        if job["state"] != "succeeded":
            word = words.verdict(job["verdict"]).label if job["verdict"] else job["state"]
            raise DemoFailed(f"the job ended as {job['state']} ({word}): {plain_line(job['reason'])}")
        return job

    def _follow(self, job_id: str) -> None:
        now = _Now(self._console)
        with (
            Client(str(self._client.base_url)) as client,
            now if not self._is_live else Live(now, console=self._console, transient=True),
        ):
            for view in client.watch(job_id):
                event = view.model_dump(mode="json")
                data = event["data"]
                if event["name"] == "candidate.judged" and data["verdict"] == "accepted":
                    self.first_accepted_s = self.first_accepted_s or now.elapsed_s
                if event["name"] == event_text.PROGRESS_EVENT:
                    now.doing = plain_line(event_text.progress(data))
                line = event_line(event)
                if line is not None:
                    now.doing = ""
                    now.say(line)
                    if self._is_live:
                        now.board = leaderboard(self._candidates(job_id))

    def show_result(self, job: Mapping[str, Any]) -> None:
        """Prints the leaderboard and what the held-out shapes say."""
        winner, summary = job["winner"] or {}, job["summary"] or {}
        self._console.print(leaderboard(self._candidates(job["id"]), winner.get("sha256")))
        origin = words.origin(winner.get("origin"))
        facts = Table.grid(padding=(0, 2))
        for name, value in (
            ("winner", plain_line(winner.get("label") or "none")),
            ("origin", f"{origin.label}. {origin.sentence}"),
            ("speedup on held-out shapes", formats.speedup(summary.get("geomean_speedup"))),
            ("its 95 % interval", formats.interval(summary.get("geomean_ci95"))),
            ("worst held-out shape", formats.speedup(summary.get("worst_speedup"))),
            ("confidently slower at", f"{formats.percent(summary.get('share_slower'))} of held-out shapes"),
        ):
            facts.add_row(Text(name, style="dim"), Text(value))
        title = "Held-out shapes, against the best baseline at each (geometric mean)"
        self._console.print(Panel(facts, title=title, title_align="left"))

    def fetch_bundle(self, job: Mapping[str, Any]) -> Path:
        """Saves the job's zip and returns its path."""
        answer = self._client.get(job["urls"]["bundle"])
        if not answer.is_success:
            raise DemoFailed(f"the bundle cannot be fetched: {_words_of(answer.json())}")
        path = self._folder / f"{_file_name(job['name'])}-{job['id'][-8:]}.zip"
        path.write_bytes(answer.content)
        return path

    def reproduce(self, bundle: Path) -> None:
        """Unpacks the bundle and runs its reproduce.py in a new, isolated process somewhere else.

        Raises:
            DemoFailed: it ended with another exit code than 0.
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

    def show_cheat(self, job: Mapping[str, Any], task_source: str) -> None:
        """Submits a cheating candidate to the finished job and shows what the referee says.

        Raises:
            DemoFailed: the referee did not turn it down.
        """
        self._say(cheat.IN_WORDS)
        body = {"candidate": cheat.cheating_candidate(task_source), "label": "replays its first output"}
        candidate = self._ask("POST", f"/jobs/{job['id']}/candidates", json=body)
        deadline = time.monotonic() + JUDGE_WITHIN_S
        while candidate["verdict"] is None:
            if time.monotonic() > deadline:
                raise DemoFailed(f"the cheating candidate was not judged within {JUDGE_WITHIN_S:.0f} s")
            time.sleep(_POLL_S)
            candidate = self._ask("GET", f"/candidates/{candidate['id']}")
        said = Text.assemble("verdict: ", (words.verdict(candidate["verdict"]).label, "bold red"))
        said.append(f"\n{plain_line(candidate['reason'])}")
        for finding in candidate["findings"]:
            said.append(
                f"\nfinding: {plain_line(finding.get('rule'))}, it {words.rule(finding.get('rule'))}",
                style="dim",
            )
            if finding.get("evidence") != candidate["reason"]:
                said.append(f"\n{plain_line(finding.get('evidence'))}", style="dim")
        self._console.print(Panel(said, title="The referee on the cheating candidate", title_align="left"))
        if candidate["verdict"] in ("accepted", "not_judged"):
            raise DemoFailed(
                f"the cheating candidate was not turned down, the verdict is {candidate['verdict']!r}"
            )

    def _candidates(self, job_id: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._ask("GET", f"/jobs/{job_id}/candidates")["data"]
        return found

    def _ask(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        answer = self._client.request(method, path, **options)
        body: dict[str, Any] = answer.json()
        if not answer.is_success:
            raise DemoFailed(f"the service refused {method} {path}: {_words_of(body)}")
        return body

    def _say(self, text: str) -> None:
        self._console.print(Text(plain_line(text)))


class _Now:
    """What a job is doing, and since when: redrawn by `Live` on a terminal, elsewhere a line after each silence.

    As a context manager it prints these lines.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._start = self._said_at = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._break_silence, daemon=True)
        self._spinner = Spinner("dots", style="cyan")
        self.board: Table | Text = Text("waiting for the first candidate", style="dim")
        self.doing = ""

    @property
    def elapsed_s(self) -> float:
        """Since the job was posted."""
        return time.monotonic() - self._start

    def say(self, line: Text) -> None:
        """Prints a line with the time."""
        self._said_at = time.monotonic()
        self._console.print(Text(f"{formats.offset(self.elapsed_s):>8}  ", style="dim") + line)

    def __rich__(self) -> Group:
        self._spinner.update(text=self._words())
        return Group(self.board, self._spinner)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()

    def _words(self) -> Text:
        return Text(
            f"{formats.offset(self.elapsed_s):>8}  {self.doing or 'choosing what to do next'}", style="cyan"
        )

    def _break_silence(self) -> None:
        while not self._over.wait(_POLL_S):
            if time.monotonic() - self._said_at > SAY_EVERY_S:
                self.say(Text(self.doing or "choosing what to do next", style="cyan"))


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


def _words_of(problem: Mapping[str, Any]) -> str:
    parts = [str(problem.get("detail") or problem)]
    parts += [f"{item.get('field')}: {item.get('message')}" for item in problem.get("errors", ())]
    return plain_line("; ".join(parts))


def _file_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-") or "bundle"
