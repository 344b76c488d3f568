"""Checks that the service on this machine is alive and ready, for container health checks, which hold no key.

    python -m services.api.ready [URL]      # exit status 0: ready; prints its findings as JSON

GET /healthz needs no key and shows that the process answers. This process runs the checks of GET /readyz itself, with its
own settings.
"""

from __future__ import annotations

import json
import sys

import httpx

from services.api.routes.health import readiness
from services.db.session import database
from services.settings import get_settings
from services.worker.app import app as celery

_TIMEOUT_S = 5.0


def main(url: str = "http://127.0.0.1:8000") -> int:
    """Print the findings and return the exit status."""
    settings = get_settings()
    found = readiness(database(settings.database), celery, settings)
    try:
        alive = httpx.get(f"{url}/healthz", timeout=_TIMEOUT_S, trust_env=False).is_success
    except httpx.TransportError:
        alive = False
    json.dump({**found, "alive": alive}, sys.stdout)
    sys.stdout.write("\n")
    return 0 if alive and found["status"] == "ready" else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
