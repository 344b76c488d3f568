"""Live workers, what each can judge, and how busy each device has been."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from evaluator.fingerprint import type_of
from services.db.models import Worker
from services.db.types import epoch_seconds
from services.gpus.rules import KNOWN_KERNEL, RULES

SEEN_WITHIN_S = 20.0
BUSY_SHARE = "busy_share"
HEALTH = "health"
_RULES = frozenset({*RULES, KNOWN_KERNEL})
_LONGEST_NAME = 100


@dataclass(frozen=True)
class Capability:
    """Workers of one kind of device.

    Attributes:
        device: cpu or cuda.
        type: the GPU's or processor's name; empty until a worker has detected it.
        ready: number of workers that passed their self-check.
        refusing: number of workers that refuse all work.
        checking: number of workers whose self-check has not finished.
        busy_share: mean share of the last seconds in which the device was judging; None if no worker reported it.
    """

    device: str
    type: str
    ready: int
    refusing: int
    checking: int
    busy_share: float | None


def alive(session: Session) -> Sequence[Worker]:
    """Rows of workers with a heartbeat in the last `SEEN_WITHIN_S` seconds."""
    return session.scalars(select(Worker).where(Worker.seen_at > epoch_seconds() - SEEN_WITHIN_S)).all()


def known(session: Session, most: int) -> list[tuple[Worker, float]]:
    """The most recently seen workers, silent ones included, each with the seconds since its last heartbeat."""
    query = select(Worker, epoch_seconds() - Worker.seen_at).order_by(Worker.seen_at.desc()).limit(most)
    return [(row[0], max(0.0, float(row[1]))) for row in session.execute(query)]


def capabilities(workers: Sequence[Worker]) -> list[Capability]:
    """Group workers by device and type."""
    groups: dict[tuple[str, str], list[Worker]] = defaultdict(list)
    for worker in workers:
        check = worker.self_check or {}
        environment = check.get("device")
        name = type_of(environment) if isinstance(environment, dict) else ""
        groups[worker.device, name[:_LONGEST_NAME]].append(worker)
    return [_capability(*key, members) for key, members in sorted(groups.items())]


def state_of(worker: Worker) -> str:
    """The state of a live worker: `ready`, `checking` itself, or `refusing` all work."""
    return "refusing" if worker.problem is not None else "checking" if worker.tier is None else "ready"


def ailments(workers: Sequence[Worker]) -> Counter[tuple[str, str]]:
    """Count workers out of service by device and health rule; ignores unknown rules."""
    found: Counter[tuple[str, str]] = Counter()
    for worker in workers:
        said = (worker.self_check or {}).get(HEALTH)
        for one in said if isinstance(said, list) else ():
            rule = one.get("rule") if isinstance(one, dict) else None
            if isinstance(rule, str) and rule in _RULES:
                found[worker.device, rule] += 1
    return found


def _capability(device: str, type_name: str, members: Sequence[Worker]) -> Capability:
    states = [state_of(one) for one in members]
    shares = [
        float(share)
        for one in members
        if isinstance(share := (one.self_check or {}).get(BUSY_SHARE), int | float)
    ]
    return Capability(
        device=device,
        type=type_name,
        ready=states.count("ready"),
        refusing=states.count("refusing"),
        checking=states.count("checking"),
        busy_share=sum(shares) / len(shares) if shares else None,
    )
