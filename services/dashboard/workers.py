"""The workers and devices page, ``/ui/workers``, and its tables as data.

| address | what |
| --- | --- |
| `/ui/workers/tables/workers.csv` | each worker: state, last heartbeat, sandbox, health |
| `/ui/workers/tables/devices.csv` | each device with its measured ceilings |

Every reader sees them, as with GET /readyz; host and process names require scope admin. A worker's row is an unverified claim:
values of an unexpected type are shown as missing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from fastapi import APIRouter, Request, Response

from services.api.deps import CallerDep, Route, SessionDep
from services.dashboard import exports, formats, tables
from services.dashboard.rendering import render
from services.dashboard.words import Word
from services.db.models import Worker, utc_now
from services.observing import workers as observed

_MOST = 200
_FACTS = ("gpu_uuid", "driver", "torch", "triton", "python", "threads", "power_limit_w")
_LONGEST = 200
STATES = {
    "ready": Word("ready", "good", "Its sandbox held, and it takes work."),
    "checking": Word("checking", "busy", "It is trying its sandbox, and takes no work yet."),
    "refusing": Word(
        "refusing", "bad", "It takes no work: its sandbox or its device did not hold the check."
    ),
    "silent": Word("silent", "warn", "It has not said for a while that it lives; its work goes to others."),
}

router = APIRouter(route_class=Route, include_in_schema=False)


@router.get("/ui/workers")
def workers_page(session: SessionDep, caller: CallerDep) -> Response:
    """Workers by what they can judge, each worker, and each device with its ceilings."""
    found = observed.known(session, _MOST)
    workers = [_worker(row, silent_s, named=caller.may("admin")) for row, silent_s in found]
    return render(
        "workers.html",
        capabilities=observed.capabilities([row for row, silent_s in found if _is_alive(silent_s)]),
        workers=workers,
        devices=_devices(found),
        states=STATES,
        named=caller.may("admin"),
    )


@router.get("/ui/workers/tables/{file}")
def workers_table(request: Request, session: SessionDep, caller: CallerDep, file: str) -> Response:
    """One of the page's tables."""
    name, ending = exports.parts_of(file, "workers", "devices")
    found = observed.known(session, _MOST)
    if name == "devices":
        table = tables.devices(_devices(found))
    else:
        table = tables.workers([_worker(row, silent_s, named=caller.may("admin")) for row, silent_s in found])
    return exports.answer_of(request, table, name, ending)


def _is_alive(silent_s: float) -> bool:
    return silent_s < observed.SEEN_WITHIN_S


def _worker(row: Worker, silent_s: float, *, named: bool) -> dict[str, Any]:
    report = observed.report_of(row)
    return {
        "id": hashlib.sha256(row.id.encode()).hexdigest()[:8],
        "process": row.id if named else None,
        "device": row.device,
        "type": report.type[:_LONGEST] or None,
        "state": observed.state_of(row) if _is_alive(silent_s) else "silent",
        "seen_at": (utc_now() - timedelta(seconds=silent_s)).isoformat(timespec="seconds"),
        "silent_s": round(silent_s, 1),
        "tier": row.tier,
        "attacks": len(report.attacks) or None,
        "held": sum(one.blocked for one in report.attacks) if report.attacks else None,
        "busy_share": report.busy_share,
        "problem": row.problem[:1000] if row.problem else None,
    }


def _devices(found: Sequence[tuple[Worker, float]]) -> list[dict[str, Any]]:
    """Devices of the listed workers, one entry per device; the most recently seen worker that reported ceilings supplies them."""
    devices: dict[tuple[str, ...], dict[str, Any]] = {}
    for row, silent_s in found:
        report = observed.report_of(row)
        if not report.device:
            continue
        facts = {name: _fact(report.device.get(name)) for name in _FACTS}
        name = report.type[:_LONGEST]
        identity = (row.device, name, *map(str, facts.values()))
        one = devices.setdefault(
            identity, {"device": row.device, "type": name, **facts, "workers": 0, "rates": {}}
        )
        one["workers"] += _is_alive(silent_s)
        one["rates"] = one["rates"] or report.ceilings
    return sorted(devices.values(), key=lambda one: (one["device"], one["type"], str(one["gpu_uuid"])))


def _fact(value: Any) -> str | int | float | None:
    if isinstance(value, str):
        return value[:_LONGEST]
    return value if formats.finite(value) is not None else None
