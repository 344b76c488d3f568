"""Sources of verdicts: a service over HTTP, or referees on this machine. Each turns a candidate into a verdict or gives the reason why not.

A judge makes no verdict itself. If it cannot get one, it raises `Unjudged`, which says whether a retry may help.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from pydantic import ValidationError

from evaluator.client import Referee
from evaluator.devices import open_device
from evaluator.environment import measured_on
from evaluator.errors import EvaluatorError, RefereeLost, SandboxUnavailable
from evaluator.fingerprint import type_of
from evaluator.sources import CandidateSource, TaskSource, sha256_of
from evaluator.verdict import Verdict, from_json
from kernelbench_tasks import catalog
from rl.config import FleetPart
from rl.errors import ConfigError, RLError
from services.client import (
    Client,
    ClientError,
    EvaluateRequest,
    EvaluationView,
    Problem,
    ServiceFault,
    TooLarge,
    TooMany,
    Unreachable,
    UnsafeAddress,
    WaitedTooLong,
)

_log = logging.getLogger(__name__)
#: Maximum duration of a request for a verdict before checking that the caller still waits for it. The first request is short because
#: its timeout returns the evaluation's id.
_LOOK_S, _FIRST_LOOK_S = 30.0, 1.0
_PAUSE_S = 1.0
#: How long `close` waits for cancellations of abandoned evaluations to reach the service.
_LEAVE_S = 5.0
#: A free referee opens a task that others have if so many candidates wait for each of them, or one waits so long: opening it takes as long as
#: judging several.
_WORTH_OPENING, _LONG_WAIT_S = 4, 20.0
#: So many candidates of a task get the same first look: opening a shape that is new to a referee takes long, some two seconds on a GPU
#: (estimated: 10 to 12 s for a candidate at five shapes).
_SAME_LOOK = 16
_RANDOM = random.SystemRandom()
#: Abandoned requests occupy their threads until they end; spare threads keep new requests from waiting for them.
_SPARE_THREADS = 256


class Unjudged(RLError):
    """There is no verdict.

    Attributes:
        again: whether a retry may help.
        gone: whether no evaluator answered at all, as when the fleet is down.
        own_fault: whether the candidate itself cannot be submitted, which counts as a rejection.
        late: whether the answer did not arrive in time.
    """

    def __init__(
        self, why: str, *, again: bool, gone: bool = False, own_fault: bool = False, late: bool = False
    ) -> None:
        super().__init__(why)
        self.again = again
        self.gone = gone
        self.own_fault = own_fault
        self.late = late


class Judge(Protocol):
    """Runs one evaluation at a time on each of its evaluators; `rl.fleet` limits its concurrent calls accordingly."""

    async def judge(self, task: TaskSource, source: str, *, whole: bool = False) -> Verdict:
        """Return the verdict on a candidate, measured anew on each call; with ``whole`` at all shapes, if first looks are shorter.

        Raises:
            Unjudged: there is none.
        """
        ...

    def close(self) -> None:
        """Release all resources."""
        ...


class ServiceJudge:
    """A service, which queues evaluations for its workers. The API key comes from the environment, see `services.client`.

    Args:
        url: the service's address.
        settings: width and times.

    Raises:
        ConfigError: the address is invalid, or the key must not be sent to it.
    """

    def __init__(self, url: str, settings: FleetPart) -> None:
        self._client = _client(url, settings)
        self._settings = settings
        self._threads = ThreadPoolExecutor(settings.width + _SPARE_THREADS, thread_name_prefix="fleet")
        self._leaving: list[Future[Any]] = []
        #: Idempotency keys of evaluations whose answer was lost to a network or service failure; a retry reuses the key and gets the same evaluation.
        self._unheard: dict[tuple[str, str], str] = {}

    async def judge(self, task: TaskSource, source: str, *, whole: bool = False) -> Verdict:
        """See `Judge.judge`; every look is whole. On cancellation or timeout, stops polling and tells the service to cancel the evaluation."""
        asked = _Asked()
        asking = self._threads.submit(self._ask, task, source, asked)
        try:
            return await asyncio.wrap_future(asking)
        except asyncio.CancelledError:
            # The thread may be inside a request and withdraw only afterward, or may not know the evaluation's id yet.
            self._leaving = [one for one in self._leaving if not one.done()]
            with suppress(RuntimeError):  # the executor was shut down meanwhile
                self._leaving += [asking, self._threads.submit(self._withdraw, asked)]
            raise
        finally:
            asked.given_up.set()

    def close(self) -> None:
        """Stop asking: briefly wait for cancellations to reach the service; running requests end by themselves."""
        wait(self._leaving, _LEAVE_S)
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._client.close()

    def _ask(self, task: TaskSource, source: str, asked: _Asked) -> Verdict:
        settings = self._settings
        # Sent only if set: services of earlier versions do not accept `shapes`.
        shapes = {"shapes": _of(settings)} if settings.shapes else {}
        try:
            request = EvaluateRequest(
                source=task.source,
                candidate=source,
                device=settings.device,
                deadline_s=settings.deadline_s,
                **shapes,
            )
        except ValidationError as error:
            named = error.errors()[0]
            own = "candidate" in named["loc"]
            raise Unjudged(f"{named['loc'][0]} {named['msg']}", again=False, own_fault=own) from None
        try:
            view = self._verdict(request, asked)
        except TooLarge as error:
            raise Unjudged(str(error), again=False, own_fault=True) from None
        except Unreachable as error:
            raise Unjudged(str(error), again=True, gone=True) from None
        except (ServiceFault, TooMany) as error:
            raise Unjudged(f"the service refused: {error}", again=True, gone=True) from None
        except Problem as error:
            raise Unjudged(f"the service refused: {error}", again=False, gone=True) from None
        except (ClientError, RuntimeError) as error:  # a client closed meanwhile raises RuntimeError
            raise Unjudged(str(error), again=False) from None
        if view.state != "succeeded" or view.result is None:
            raise Unjudged(f"the evaluation {view.state}: {view.reason or 'no reason given'}", again=True)
        try:
            return from_json(view.result)
        except (ValueError, TypeError, AttributeError) as error:
            raise Unjudged(f"the service answered with no verdict: {error}", again=False) from None

    def _verdict(self, request: EvaluateRequest, asked: _Asked) -> EvaluationView:
        """Poll until the evaluation ends; an idempotency key makes each request refer to the same one."""
        patience_s, look_s = self._settings.patience_s, _FIRST_LOOK_S
        what = (sha256_of(request.source or ""), sha256_of(request.candidate))
        key = self._unheard.pop(what, None) or uuid.uuid4().hex
        ends_s = time.monotonic() + patience_s
        while (left_s := ends_s - time.monotonic()) > 0 and not asked.given_up.is_set():
            try:
                return self._client.evaluate(request, seconds=min(left_s, look_s), idempotency_key=key)
            except WaitedTooLong as error:
                asked.evaluation, look_s = error.waited_for, _LOOK_S
                # The client may time out up to a second early: pause before the next request; the verdict may still come in the time left.
                asked.given_up.wait(min(max(ends_s - time.monotonic(), 0.0), _PAUSE_S))
            except (Unreachable, ServiceFault, TooMany):
                if not asked.given_up.is_set():  # otherwise it is cancelled, and a retry needs a new key
                    self._unheard[what] = key
                raise
        self._withdraw(asked)
        raise Unjudged(f"no verdict within {patience_s:g} s", again=False, late=True)

    def _withdraw(self, asked: _Asked) -> None:
        """Cancel an evaluation that is no longer needed, to free the service's workers."""
        if asked.evaluation is None:
            return
        try:
            self._client.cancel_evaluation(asked.evaluation)
        except (ClientError, RuntimeError, ValueError) as error:
            # Services of earlier versions cannot cancel; there, the evaluation ends at its own deadline.
            _log.info("the service was not told to stop an evaluation: %s", error)


class _Asked:
    """A request to a service.

    Attributes:
        given_up: set when the caller no longer waits for the answer.
        evaluation: the evaluation's id, once the service has returned it.
    """

    def __init__(self) -> None:
        self.given_up = threading.Event()
        self.evaluation: str | None = None


@dataclass
class _Turn:
    """A candidate that waits for a referee of this machine.

    Attributes:
        task: digest of its task.
        referee: done in its own event loop once there is one.
        since_s: when it came.
    """

    task: str
    referee: asyncio.Future[Referee]
    since_s: float = field(default_factory=time.monotonic)


class LocalJudge:
    """Referees on this machine, each with its own thread, because a referee's child processes end with the thread that started them.

    Opening a task takes longer than judging a candidate, so a referee keeps to its task while candidates wait for it. A free one takes a task that
    another has open if several candidates wait for it, or one for long.

    Args:
        settings: number of referees, device and times.
        work_dir: folder for compile caches; by default the referee's own.

    Raises:
        SandboxUnavailable: this machine has no sandbox to isolate untrusted code.
    """

    def __init__(self, settings: FleetPart, work_dir: Path | None = None) -> None:
        self._settings = settings
        self._threads: dict[Referee, ThreadPoolExecutor] = {}
        #: Guards what follows: referees end in their own threads.
        self._guard = threading.Lock()
        self._free: list[Referee] = []
        #: The task that a referee has open, and what waits for one.
        self._open: dict[Referee, str] = {}
        self._waiting: list[_Turn] = []
        #: Shapes of tasks, by split.
        self._shapes: dict[str, dict[str, list[dict[str, Any]]]] = {}
        #: First looks that are drawn, and how many candidates still get them.
        self._looks: dict[str, tuple[dict[Any, list[dict[str, Any]]], int]] = {}
        # Read now: Python 3.11 cannot parse in several threads at once (a SystemError), and the catalog is read once.
        catalog.find_by_sha256("")
        count = settings.local_referees
        pools = [ThreadPoolExecutor(1, thread_name_prefix="referee") for _ in range(count)]
        # Side by side: a start takes seven seconds.
        starting = [
            pool.submit(Referee, settings.device, work_dir=work_dir, referees=count) for pool in pools
        ]
        wait(starting)
        for pool, one in zip(pools, starting, strict=True):
            if one.exception() is None:
                self._threads[one.result()] = pool
            else:
                pool.shutdown()
        if failed := next((error for one in starting if (error := one.exception()) is not None), None):
            self.close()
            raise failed
        self._free.extend(self._threads)

    async def judge(self, task: TaskSource, source: str, *, whole: bool = False) -> Verdict:
        """See `Judge.judge`. Cancellation kills the referee that runs the evaluation; its next call restarts it.

        Raises:
            TimeoutError: the evaluation took longer than `FleetPart.patience_s`; waiting for a referee does not count.
        """
        loop = asyncio.get_running_loop()
        turn = _Turn(task.sha256, loop.create_future())
        with self._guard:
            self._waiting.append(turn)
        loop.call_soon(self._assign)  # after the candidates that come at the same time
        later = loop.call_later(_LONG_WAIT_S, self._assign)
        try:
            referee = await turn.referee
        except asyncio.CancelledError:
            with self._guard:
                if turn in self._waiting:
                    self._waiting.remove(turn)
            if turn.referee.done() and not turn.referee.cancelled():
                self._give_back(turn.referee.result())
            raise
        finally:
            later.cancel()
        threads = self._threads.get(referee)
        if threads is None:
            raise _closed()
        running = loop.run_in_executor(threads, self._ask, referee, task, source, whole)
        try:
            async with asyncio.timeout(self._settings.patience_s):
                return await asyncio.shield(running)
        except (asyncio.CancelledError, TimeoutError):
            referee.kill()
            running.add_done_callback(lambda done: done.cancelled() or done.exception())
            raise

    def _assign(self) -> None:
        """Give free referees to candidates that wait."""
        with self._guard:
            for referee in list(self._free):
                while (turn := self._turn_for(self._open.get(referee))) is not None:
                    self._waiting.remove(turn)
                    try:
                        turn.referee.get_loop().call_soon_threadsafe(self._give, turn, referee)
                    except RuntimeError:  # its event loop has ended, and nothing waits there: the next one
                        continue
                    self._free.remove(referee)
                    self._open[referee] = turn.task
                    break

    def _give(self, turn: _Turn, referee: Referee) -> None:
        if turn.referee.done():  # it was given up meanwhile
            self._give_back(referee)
        else:
            turn.referee.set_result(referee)

    def _give_back(self, referee: Referee) -> None:
        with self._guard:
            if referee in self._threads:
                self._free.append(referee)
        self._assign()

    def _turn_for(self, task: str | None) -> _Turn | None:
        """The candidate that a referee with this task open judges next: of its task, of one that no referee has, or of one with several."""
        own = next((one for one in self._waiting if one.task == task), None)
        if own is not None:
            return own
        opened = list(self._open.values())
        unopened = next((one for one in self._waiting if one.task not in opened), None)
        if unopened is not None:
            return unopened
        counts = Counter(one.task for one in self._waiting)
        long_ago_s = time.monotonic() - _LONG_WAIT_S
        return next(
            (
                one
                for one in self._waiting
                if counts[one.task] >= _WORTH_OPENING * opened.count(one.task) or one.since_s <= long_ago_s
            ),
            None,
        )

    def close(self) -> None:
        """End the referees; what still waits for one is not judged."""
        with self._guard:
            waiting, self._waiting = self._waiting, []
            threads, self._threads = dict(self._threads), {}
            self._free.clear()
        for turn in waiting:
            with suppress(RuntimeError):
                turn.referee.get_loop().call_soon_threadsafe(_refuse, turn)
        for referee, own in threads.items():
            referee.kill()
            own.submit(referee.close).result()
            own.shutdown()

    def _ask(self, referee: Referee, task: TaskSource, source: str, whole: bool) -> Verdict:
        try:
            if not referee.alive:
                referee.restart()
            shapes = _of(self._settings) if whole else self._first_look(referee, task)
            candidate = CandidateSource(source, origin="policy")
            return referee.evaluate(
                task,
                candidate,
                deadline_s=self._settings.deadline_s,
                shapes=shapes,
                # The catalog's own tasks are linted in the repository.
                submitted=catalog.find_by_sha256(task.sha256) is None,
            )
        except SandboxUnavailable as error:
            raise Unjudged(str(error), again=False, gone=True) from None
        except RefereeLost as error:
            raise Unjudged(str(error), again=True, gone=True) from None
        except EvaluatorError as error:
            raise Unjudged(str(error), again=True) from None
        finally:
            self._give_back(referee)

    def _first_look(self, referee: Referee, task: TaskSource) -> dict[Any, list[dict[str, Any]]] | None:
        """The shapes of a first look: the first timed ones, so that speeds compare, and any of the others, so that no policy learns which.

        They are drawn anew after `_SAME_LOOK` candidates of a task.
        """
        counts = self._settings.first_look
        if counts is None:
            return _of(self._settings)
        if task.sha256 not in self._shapes:
            described = referee.describe(task, deadline_s=self._settings.deadline_s)
            if not described.ok:
                return None  # the verdict says why
            self._shapes[task.sha256] = described.shapes
        with self._guard:
            look, left = self._looks.get(task.sha256, ({}, 0))
            if not left:
                look, left = self._drawn(self._shapes[task.sha256], counts), _SAME_LOOK
            self._looks[task.sha256] = look, left - 1
        return look

    @staticmethod
    def _drawn(
        every: Mapping[str, list[dict[str, Any]]], counts: Mapping[Any, int]
    ) -> dict[Any, list[dict[str, Any]]]:
        look: dict[Any, list[dict[str, Any]]] = {}
        for split, count in counts.items():
            shapes = every.get(split, [])
            look[split] = (
                shapes[:count] if split == "visible" else _RANDOM.sample(shapes, min(count, len(shapes)))
            )
        return look


def _refuse(turn: _Turn) -> None:
    if not turn.referee.done():
        turn.referee.set_exception(_closed())


def _closed() -> Unjudged:
    return Unjudged("the judge was closed", again=False, gone=True)


def _of(settings: FleetPart) -> dict[Any, list[dict[str, Any]]] | None:
    shapes = {split: list(every) for split, every in (settings.shapes or {}).items() if every}
    return shapes or None


def _client(url: str, settings: FleetPart) -> Client:
    try:
        return Client(url, timeout_s=min(30.0, settings.patience_s))
    except UnsafeAddress as error:
        raise ConfigError(f"`fleet.url` cannot be asked: {error}") from None


def check_address(settings: FleetPart) -> None:
    """Check the service's address without sending a request.

    Raises:
        ConfigError: see `ServiceJudge`.
    """
    if settings.url is not None:
        _client(settings.url, settings).close()


def machine_of(settings: FleetPart) -> str | None:
    """The machine type that rewards apply to; None if only a service's first verdict will tell.

    Raises:
        Unjudged: this machine has no such device.
    """
    if settings.machine is not None or settings.url is not None:
        return settings.machine
    try:
        return type_of(measured_on(open_device(settings.device))) or None
    except EvaluatorError as error:
        raise Unjudged(
            f"nothing here can judge: {error}; name a service in `fleet.url`, or another `fleet.device`",
            again=False,
            gone=True,
        ) from None


def judge_of(settings: FleetPart, work_dir: Path | None = None) -> Judge:
    """Create the judge that the settings specify."""
    return ServiceJudge(settings.url, settings) if settings.url else LocalJudge(settings, work_dir)
