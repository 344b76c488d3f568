"""A worker's row in the workers table: heartbeat, device, and the sandbox tier that passed the self-check.

The self-check runs before the first job. A worker refuses every job (fails closed) if its sandbox fails the check, or if
its device's measured ceilings do not match other devices of the type it reports. `services.worker.health` monitors a GPU
continuously: a worker with an unhealthy GPU refuses work until the GPU recovers.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from evaluator.devices import is_accelerator
from evaluator.errors import EvaluatorError
from evaluator.fingerprint import type_of
from evaluator.folders import default_work_dir
from evaluator.profiling import ceilings
from evaluator.profiling.claims import doubt
from services.db.models import Worker
from services.db.session import Database
from services.db.types import epoch_seconds, storable_json, upsert
from services.gpus.reading import NvmlGpu
from services.observing.workers import report_of
from services.worker import health
from services.worker.health import DeviceHealth, try_kernel
from services.worker.referee_queue import RefereeQueue

BEAT_EVERY_S = 5.0
# A check can fail on a very busy machine, or while processes of a killed worker are still around.
TRIES = 3
TRY_AGAIN_S = 5.0
CHECK_AGAIN_S = 60.0
_FORGET_AFTER_S = 7 * 24 * 3600.0
_log = logging.getLogger(__name__)


class Presence:
    """Runs the self-check and updates the worker's row until `stop`."""

    def __init__(self, database: Database, queue: RefereeQueue, owner: str) -> None:
        self._database = database
        self._queue = queue
        self._owner = owner
        self._checked = threading.Event()
        self._stopped = threading.Event()
        self._check: dict[str, Any] | None = None
        self._problem: str | None = None
        self._health: DeviceHealth | None = None
        self._busy = (time.monotonic(), 0.0)
        self._busy_share: float | None = None
        self._threads = [
            threading.Thread(target=self._run_check, name="self-check", daemon=True),
            threading.Thread(target=self._beat, name="presence", daemon=True),
        ]

    def start(self) -> None:
        """Start the self-check and heartbeat threads."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop the heartbeat and delete the row."""
        self._stopped.set()
        self._threads[1].join(timeout=BEAT_EVERY_S)
        try:
            with self._database.write() as session:
                session.execute(delete(Worker).where(Worker.id == self._owner))
        except SQLAlchemyError as error:  # the row goes stale and is no longer counted
            _log.warning("the worker's row stays: %s", type(error).__name__)

    def problem(self) -> str | None:
        """Wait for the first self-check; return why this worker must not run untrusted code, or None."""
        self._checked.wait()
        return self._current_problem()

    def is_sick(self) -> bool:
        """Whether the device is so unhealthy that its running work must be released."""
        return self._health is not None and self._health.stops()

    def _current_problem(self) -> str | None:
        return self._problem or (self._health.problem() if self._health is not None else None)

    def _run_check(self) -> None:
        """Retry the self-check until it passes: `TRIES` times quickly, then every `CHECK_AGAIN_S`, refusing work meanwhile."""
        tries = 0
        while not self._stopped.is_set():
            tries += 1
            problem = self._check_once()
            if problem is None or tries >= TRIES:
                self._problem = problem
                self._checked.set()
                self._write()
            if problem is None:
                self._watch_device()
                return
            self._stopped.wait(TRY_AGAIN_S if tries < TRIES else CHECK_AGAIN_S)
        self._problem = self._problem or "the worker is shutting down"
        self._checked.set()

    def _watch_device(self) -> None:
        """Monitor the GPU until the worker stops."""
        uuid = ((self._check or {}).get("device") or {}).get("gpu_uuid")
        if not is_accelerator(self._queue.device) or not uuid:
            return
        try:
            gpu = NvmlGpu(str(uuid))
        except OSError as error:
            _log.warning("the health of this GPU is not watched: %s", error)
            return
        queue = self._queue
        self._health = DeviceHealth(gpu, lambda: try_kernel(queue.for_job()), queue.is_idle, queue.is_warm)
        while not self._stopped.wait(health.LOOK_EVERY_S):
            try:
                changed = self._health.look()
            except Exception:  # noqa: BLE001 - if this thread died, a GPU could not leave or re-enter service
                _log.exception("the health of this GPU could not be looked at")
                continue
            if changed:
                self._write()

    def _check_once(self) -> str | None:
        try:
            check = self._queue.for_job().self_check()
        except Exception as error:  # noqa: BLE001 - after any error, a worker that could not check itself must refuse work
            _log.warning("self-check failed: %s", error)
            return f"the sandbox could not be checked: {error}"
        self._check = check
        open_attacks = [attack["name"] for attack in check["attacks"] if not attack["blocked"]]
        if open_attacks and check.get("tier") != "none":
            return f"the sandbox did not hold against: {', '.join(open_attacks)}"
        return self._misfit(check)

    def _misfit(self, check: dict[str, Any]) -> str | None:
        """Why the device does not match its reported type, or None; measures a GPU's unknown ceilings first (half a minute)."""
        device = self._queue.device
        try:
            known = ceilings.kept(default_work_dir(), device)
            if known is None and is_accelerator(device):
                known = ceilings.ceilings(default_work_dir(), device)
        except EvaluatorError as error:
            _log.warning("the ceilings of this device could not be measured: %s", error)
            return None
        if known is None:
            return None
        check["ceilings"] = known["rates"]
        name = type_of(check["device"])
        return doubt(device, name, known["rates"], self._rates_of_others(name))

    def _rates_of_others(self, type_name: str) -> list[dict[str, float]]:
        """Ceilings of other workers that report this type and have no problem."""
        believed = select(Worker).where(Worker.id != self._owner, Worker.problem.is_(None))
        with self._database.read() as session:
            found = [report_of(worker) for worker in session.scalars(believed)]
        return [one.ceilings for one in found if one.type == type_name and one.ceilings]

    def _beat(self) -> None:
        while True:
            self._measure_busy_share()
            self._write()
            if self._stopped.wait(BEAT_EVERY_S):
                return

    def _measure_busy_share(self) -> None:
        (then, busy_then), now = self._busy, (time.monotonic(), self._queue.busy_seconds())
        self._busy = now
        if now[0] - then >= BEAT_EVERY_S / 2:
            self._busy_share = round(min(1.0, (now[1] - busy_then) / (now[0] - then)), 3)

    def _write(self) -> None:
        if self._stopped.is_set():
            return
        try:
            with self._database.write() as session:
                self._upsert(session)
        except SQLAlchemyError:
            _log.warning("could not write the worker's row", exc_info=True)

    def _upsert(self, session: Session) -> None:
        session.execute(delete(Worker).where(Worker.seen_at < epoch_seconds() - _FORGET_AFTER_S))
        # read as `services.observing.workers.Report`
        health_found = self._health.found if self._health else ()
        beside = {
            "busy_share": self._busy_share,
            "health": [{"rule": one.rule, "sentence": one.sentence} for one in health_found],
        }
        said = {
            "tier": self._check.get("tier") if self._check and self._problem is None else None,
            "self_check": storable_json({**self._check, **beside}) if self._check else None,
            "problem": self._current_problem(),
            "seen_at": epoch_seconds(),
        }
        upsert(session, Worker, ["id"], {"id": self._owner, "device": self._queue.device, **said}, said)
