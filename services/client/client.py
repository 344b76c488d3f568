"""A client of the HTTP API for Python programs; needs only httpx and pydantic (the extra `client`, see docs/clients.md)."""

from __future__ import annotations

import json
import os
import re
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from services.client.errors import UnexpectedAnswer, WaitedTooLong
from services.client.sending import Exchange, api_key_of, is_passing, json_of, pause, problem_of
from services.client.stream import events_of
from services.jobs.requests import CandidateRequest, EvaluateRequest, OptimizeRequest, Request
from services.jobs.views import CandidateView, EvaluationView, EventView, JobView, Page

DEFAULT_URL = "http://127.0.0.1:8000"
FINAL_STATES = frozenset({"succeeded", "failed", "cancelled"})
_STREAM_SILENCE_S = 60.0  # the service sends something every 25 s
_LONGEST_WAIT_S = 60
_POLL_S = 1.0
_PAGE = 100  # the service's largest page
_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z_.-]{0,79}")
_PIECE_BYTES = 1 << 16
View = TypeVar("View", bound=BaseModel)
Listed = TypeVar("Listed", bound=JobView | CandidateView)


class Client:
    """A client of one service.

    Results are typed (`services.jobs.views`); text in them from a candidate or a compiler is untrusted. Errors are those of
    `services.client.errors`. Repeatable requests are retried if no response arrives; `submit` and `evaluate` send an
    idempotency key, so a retry creates nothing twice.

    Args:
        url: the service's address.
        api_key: sent as a bearer token; defaults to the environment's KERNELWRIGHT_API_KEY.
        timeout_s: seconds without a byte after which a request fails.
        allow_insecure_key: allow sending the key over plain http to another machine.

    Example:
        with Client() as client:
            job = client.submit(OptimizeRequest(task="layernorm_relu_add", budget=BudgetRequest(seconds=120)))
            for event in client.watch(job.id):
                print(event.name)
            client.fetch(job.id, "bundle.zip")
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        api_key: str | None = None,
        *,
        timeout_s: float = 30.0,
        allow_insecure_key: bool = False,
    ) -> None:
        self._exchange = Exchange(
            url, api_key_of(api_key), timeout_s=timeout_s, allow_insecure_key=allow_insecure_key
        )
        self.url = self._exchange.shown

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Client({self.url!r})"

    def close(self) -> None:
        """Close the connections."""
        self._exchange.close()

    def submit(self, request: OptimizeRequest, *, idempotency_key: str | None = None) -> JobView:
        """Start a job.

        Args:
            request: what to optimize, and the limits.
            idempotency_key: the same key and request within a day return the same job; by default a new key.
        """
        return self._make("/optimize", request, idempotency_key, JobView)

    def jobs(self, *, limit: int | None = None) -> Iterator[JobView]:
        """List jobs, newest first: all of them, page by page, or the first `limit`."""
        return self._pages("/jobs", JobView, limit)

    def job(self, job_id: str) -> JobView:
        """Return one job's current state."""
        return self._look(f"/jobs/{_id(job_id)}", JobView)

    def candidates(self, job_id: str, *, limit: int | None = None) -> Iterator[CandidateView]:
        """List a job's candidates with verdicts in order of arrival: all of them, page by page, or the first `limit`."""
        return self._pages(f"/jobs/{_id(job_id)}/candidates", CandidateView, limit)

    def add_candidate(self, job_id: str, request: CandidateRequest) -> CandidateView:
        """Add your own candidate to a job. Never retried: if no response arrives, check `candidates`."""
        body = request.model_dump(mode="json", exclude_unset=True)
        return _view(self._exchange.ask("POST", f"/jobs/{_id(job_id)}/candidates", json=body), CandidateView)

    def cancel(self, job_id: str) -> JobView:
        """Stop a job; has no effect on a job that is already stopping or has ended."""
        return _view(self._exchange.ask("POST", f"/jobs/{_id(job_id)}/cancel", again=True), JobView)

    def watch(self, job_id: str, *, after: int = 0, tries: int = 6) -> Iterator[EventView]:
        """Yield a job's events as they happen, until no more will come.

        A broken stream is resumed after the last event seen, so no event is lost or repeated.

        Args:
            job_id: the job.
            after: id of the last event already seen.
            tries: consecutive connections that may fail.

        Raises:
            Unreachable: the service stayed unreachable.
        """
        path = f"/jobs/{_id(job_id)}/events"
        failed, asked_s = 0, None
        while True:
            headers = {"Accept": "text/event-stream", "Last-Event-ID": str(after)}
            heard = False
            try:
                with self._exchange.stream(path, headers, _STREAM_SILENCE_S) as response:
                    if response.status_code == httpx.codes.NO_CONTENT:
                        return
                    if response.status_code != httpx.codes.OK:
                        response.read()
                        failed += 1
                        if failed >= tries or not is_passing(response):
                            raise problem_of(response)
                    elif not response.headers.get("content-type", "").startswith("text/event-stream"):
                        raise UnexpectedAnswer(f"{self.url}{path} sends no events")
                    else:
                        failed = 0
                        for found in events_of(response.iter_bytes()):
                            if found.retry_ms is not None:
                                asked_s = found.retry_ms / 1000
                                continue
                            event = _event(found.data)
                            if event.id > after:
                                after, heard = event.id, True
                                yield event
            except httpx.RequestError as error:
                failed += 1
                if failed >= tries:
                    self._exchange.unreachable(error)
            if not heard:  # a stream that delivered events ended with the job or resumes at once
                pause(max(failed, 1), asked_s if failed <= 1 else None)

    def wait(self, job_id: str, *, seconds: float | None = None) -> JobView:
        """Wait until the job ends or needs answers to a batch, and return it.

        Raises:
            WaitedTooLong: not within `seconds`; the job continues.
        """
        return self._until(lambda: self.job(job_id), seconds, f"job {job_id}")

    def fetch(
        self, job_id: str, path: str | Path, on_progress: Callable[[int, int | None], None] | None = None
    ) -> Path:
        """Download a job's bundle to a file, which appears once it is complete.

        Args:
            job_id: the job.
            path: the file, or a folder to put it into.
            on_progress: called with the bytes received and the total, if known.

        Raises:
            Conflict: the job has no bundle (yet).
        """
        target = Path(path)
        if target.is_dir():
            target = target / f"kernelwright-{_id(job_id)}.zip"
        source = f"/jobs/{_id(job_id)}/bundle"
        for tried in range(1, 4):
            try:
                with self._exchange.stream(source, {"Accept": "application/zip"}, 60.0) as response:
                    if response.is_success:
                        return _written(response, target, on_progress)
                    response.read()
                    if tried == 3 or not is_passing(response):
                        raise problem_of(response)
            except httpx.RequestError as error:
                if tried == 3:
                    self._exchange.unreachable(error)
            pause(tried)
        raise AssertionError("the last try returns or raises")

    def evaluate(
        self, request: EvaluateRequest, *, seconds: float | None = None, idempotency_key: str | None = None
    ) -> EvaluationView:
        """Have the referee judge one candidate, and wait for the verdict.

        Args:
            request: the task and the candidate.
            seconds: how long to wait; None waits as long as the request's own deadline and the queue take.
            idempotency_key: as in `submit`.

        Raises:
            WaitedTooLong: no verdict in time; the evaluation continues unless `cancel_evaluation` stops it.
        """
        wait_s = _LONGEST_WAIT_S if seconds is None else max(0, min(_LONGEST_WAIT_S, int(seconds)))
        began = time.monotonic()
        made = self._make("/evaluate", request, idempotency_key, EvaluationView, wait_s)
        if made.state in FINAL_STATES:
            return made
        left = None if seconds is None else max(0.0, seconds - (time.monotonic() - began))
        return self._until(lambda: self.evaluation(made.id), left, f"evaluation {made.id}")

    def evaluation(self, evaluation_id: str) -> EvaluationView:
        """Return one evaluation's current state."""
        return self._look(f"/evaluations/{_id(evaluation_id)}", EvaluationView)

    def cancel_evaluation(self, evaluation_id: str) -> EvaluationView:
        """Stop an evaluation; has no effect on one that is already stopping or has ended."""
        path = f"/evaluations/{_id(evaluation_id)}/cancel"
        return _view(self._exchange.ask("POST", path, again=True), EvaluationView)

    def batch(self, job_id: str) -> str:
        """Return a waiting job's requests to its models as an input file of OpenAI's Batch API."""
        return self._exchange.ask("GET", f"/jobs/{_id(job_id)}/batch", again=True).text

    def answer_batch(self, job_id: str, answers: str, *, more: bool = False) -> JobView:
        """Send answers to a batch; with `more`, the job waits for further ones. Never retried."""
        body = {"answers": answers, "more": more}
        return _view(self._exchange.ask("POST", f"/jobs/{_id(job_id)}/batch", json=body), JobView)

    def _make(self, path: str, request: Request, key: str | None, view: type[View], wait_s: int = 0) -> View:
        headers = {"Idempotency-Key": key or uuid.uuid4().hex}
        if wait_s:
            headers["Prefer"] = f"wait={wait_s}"
        body = request.model_dump(mode="json", exclude_unset=True)
        response = self._exchange.ask(
            "POST", path, again=True, headers=headers, json=body, timeout_s=wait_s + 30.0
        )
        return _view(response, view)

    def _look(self, path: str, view: type[View]) -> View:
        return _view(self._exchange.ask("GET", path, again=True), view)

    def _pages(self, path: str, view: type[Listed], limit: int | None) -> Iterator[Listed]:
        after: str | int | None = None
        left = limit
        while left is None or left > 0:
            params = {"limit": min(_PAGE, left or _PAGE)} | ({} if after is None else {"after": after})
            page = _view(self._exchange.ask("GET", path, again=True, params=params), Page[view])  # type: ignore[valid-type]
            yield from page.data[:left]
            # an empty page that claims more would be requested forever
            if not page.has_more or not page.data or page.last_id == after:
                return
            after = page.last_id
            left = None if left is None else left - len(page.data)

    def _until(self, look: Callable[[], Any], seconds: float | None, what: str) -> Any:
        deadline = None if seconds is None else time.monotonic() + seconds
        while True:
            found = look()
            if found.state in FINAL_STATES or found.state == "waiting":
                return found
            if deadline is not None and time.monotonic() + _POLL_S > deadline:
                raise WaitedTooLong(f"{what} is still {found.state} after {seconds:g} s", found.id)
            time.sleep(_POLL_S)


def _id(given: str) -> str:
    """Validate an id for use as one segment of a URL path."""
    if not _ID.fullmatch(given):
        raise ValueError(f"{given[:80]!r} is no id")
    return given


def _view(response: httpx.Response, view: type[View]) -> View:
    try:
        return view.model_validate(json_of(response))
    except ValidationError as error:
        raise UnexpectedAnswer(
            f"{response.url} answered with something that this client does not know; fields that do not fit: {error.error_count()}"
        ) from None


def _event(text: str) -> EventView:
    try:
        return EventView.model_validate(json.loads(text))
    except ValueError:
        raise UnexpectedAnswer("the stream holds an event that this client does not know") from None


def _written(
    response: httpx.Response, target: Path, on_progress: Callable[[int, int | None], None] | None
) -> Path:
    said = response.headers.get("content-length", "")
    total = int(said) if said.isdecimal() else None
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            for piece in response.iter_bytes(_PIECE_BYTES):
                file.write(piece)
                if on_progress is not None:
                    on_progress(file.tell(), total)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(name, 0o666 & ~umask)  # the default mode of new files; mkstemp makes them private
        os.replace(name, target)
    except BaseException:
        os.unlink(name)
        raise
    return target
