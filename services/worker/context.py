"""The components of a worker process, created once on first use."""

from __future__ import annotations

import logging
import os
import threading

from sqlalchemy import delete
from sqlalchemy.exc import SQLAlchemyError

from agent.spec import API_KEY_VARIABLE, POLICY_API_KEY_VARIABLE
from services.db.models import Worker
from services.db.session import database
from services.jobs import lease
from services.settings import Settings, get_settings
from services.worker.identity import own_identity
from services.worker.presence import Presence
from services.worker.referee_queue import RefereeQueue
from services.worker.runner import Runner
from services.worker.slots import Slots

_STOP_WITHIN_S = 5.0

_log = logging.getLogger(__name__)


class WorkerContext:
    """This process's referee queue, presence, runner and slots; the slots look for work once started."""

    def __init__(self, settings: Settings) -> None:
        keys = {API_KEY_VARIABLE: settings.llm_api_key, POLICY_API_KEY_VARIABLE: settings.policy_api_key}
        for variable, key in keys.items():
            if key is not None:
                # the agent reads keys from the environment; in a container the setting may come from a file
                os.environ.setdefault(variable, key.get_secret_value())
        base = database(settings.database)
        self.owner = own_identity()
        self.queue = RefereeQueue(
            settings.device, settings.data_dir.expanduser().resolve() / "bench", settings.minimum_tier
        )
        self.presence = Presence(base, self.queue, self.owner)
        self.runner = Runner(
            settings, base, self.queue, self.owner, self.presence.problem, self.presence.is_sick
        )
        self.slots = Slots(self.runner.work_on_next, self.presence.problem, self.runner.stopping)

    def stop(self) -> None:
        """Release running rows, kill running work and delete the worker's row."""
        self.runner.stopping.set()
        self.queue.close()
        self.slots.stop(_STOP_WITHIN_S)
        self.presence.stop()


_made: WorkerContext | None = None
_making = threading.Lock()


def worker_context() -> WorkerContext:
    """Return this process's context; the first call creates it and starts its self-check."""
    global _made
    with _making:
        if _made is None:
            _made = WorkerContext(get_settings())
            _made.presence.start()
        return _made


def wake(device: str, table: str) -> None:
    """Wake this process's slots for a table, if it has a worker for the device."""
    if _made is not None and _made.queue.device == device:
        _made.slots.wake(table)


def stop_worker() -> None:
    """Stop this process's worker if it has one."""
    with _making:
        if _made is not None:
            _made.stop()


def free_rows_of(owner: str) -> None:
    """Free the rows of a dead worker and delete its entry; if the database is unreachable, its leases expire instead."""
    try:
        with database(get_settings().database).write() as session:
            lease.expire_leases_of(session, [owner])
            session.execute(delete(Worker).where(Worker.id == owner))
    except SQLAlchemyError as error:
        _log.warning("the rows of %s wait for their leases to run out: %s", owner, error)
