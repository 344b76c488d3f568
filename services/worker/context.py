"""What one worker process consists of; made once, on first use."""

from __future__ import annotations

import os
import threading

from agent.spec import API_KEY_VARIABLE, POLICY_API_KEY_VARIABLE
from services.db.session import database
from services.settings import Settings, get_settings
from services.worker.bench import Bench
from services.worker.identity import own_identity
from services.worker.presence import Presence
from services.worker.runner import Runner


class WorkerContext:
    """Bench, presence and runner of this process."""

    def __init__(self, settings: Settings) -> None:
        keys = {API_KEY_VARIABLE: settings.llm_api_key, POLICY_API_KEY_VARIABLE: settings.policy_api_key}
        for variable, key in keys.items():
            if key is not None:
                # the agent finds a key by the name of its variable; in a container it may have come as a file
                os.environ.setdefault(variable, key.get_secret_value())
        base = database(settings.database)
        self.owner = own_identity()
        self.bench = Bench(
            settings.device, settings.data_dir.expanduser().resolve() / "bench", settings.minimum_tier
        )
        self.presence = Presence(base, self.bench, self.owner)
        self.runner = Runner(settings, base, self.bench, self.owner, self.presence.problem)

    def stop(self) -> None:
        """Give running rows back, kill what runs, take the worker's row away."""
        self.runner.stopping.set()
        self.bench.close()
        self.presence.stop()


_made: WorkerContext | None = None
_making = threading.Lock()


def worker_context() -> WorkerContext:
    """This process's context, with its self-check under way."""
    global _made
    with _making:
        if _made is None:
            _made = WorkerContext(get_settings())
            _made.presence.start()
        return _made


def stop_worker() -> None:
    """Stop this process's worker if it has one."""
    with _making:
        if _made is not None:
            _made.stop()
