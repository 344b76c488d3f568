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
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from fastapi import APIRouter, Request, Response

from evaluator.fingerprint import type_of
from services.api.deps import CallerDep, Route, SessionDep
from services.dashboard import exports, tables
from services.dashboard.formats import finite
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
    check = _mapping(row.self_check)
    attacks = [one for one in _list(check.get("attacks")) if isinstance(one, Mapping)]
    checked = bool(attacks)
    return {
        "id": hashlib.sha256(row.id.encode()).hexdigest()[:8],
        "process": row.id if named else None,
        "device": row.device,
        "type": type_of(_mapping(check.get("device")))[:_LONGEST] or None,
        "state": observed.state_of(row) if _is_alive(silent_s) else "silent",
        "seen_at": (utc_now() - timedelta(seconds=silent_s)).isoformat(timespec="seconds"),
        "silent_s": round(silent_s, 1),
        "tier": row.tier,
        "attacks": len(attacks) if checked else None,
        "held": sum(one.get("blocked") is True for one in attacks) if checked else None,
        "busy_share": _number(check.get(observed.BUSY_SHARE)),
        "problem": row.problem[:1000] if row.problem else None,
    }


def _devices(found: Sequence[tuple[Worker, float]]) -> list[dict[str, Any]]:
    """Devices of the listed workers, one entry per device; the most recently seen worker that reported ceilings supplies them."""
    devices: dict[tuple[str, ...], dict[str, Any]] = {}
    for row, silent_s in found:
        check = _mapping(row.self_check)
        environment = _mapping(check.get("device"))
        if not environment:
            continue
        facts = {name: _fact(environment.get(name)) for name in _FACTS}
        name = type_of(environment)[:_LONGEST]
        identity = (row.device, name, *map(str, facts.values()))
        one = devices.setdefault(
            identity, {"device": row.device, "type": name, **facts, "workers": 0, "rates": {}}
        )
        one["workers"] += _is_alive(silent_s)
        one["rates"] = one["rates"] or _rates(check.get("ceilings"))
    return sorted(devices.values(), key=lambda one: (one["device"], one["type"], str(one["gpu_uuid"])))


def _rates(value: Any) -> dict[str, float]:
    found = {str(name)[:_LONGEST]: _number(rate) for name, rate in _mapping(value).items()}
    return {name: rate for name, rate in found.items() if rate is not None and rate > 0}


def _fact(value: Any) -> str | int | float | None:
    if isinstance(value, str):
        return value[:_LONGEST]
    return _number(value)


def _number(value: Any) -> float | None:
    return value if finite(value) is not None else None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else []
