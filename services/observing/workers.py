"""Live workers, what each can judge, and how busy each device has been."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator
from pydantic import ValidatorFunctionWrapHandler as Handler
from sqlalchemy import select
from sqlalchemy.orm import Session

from evaluator.fingerprint import type_of
from services.db.models import Worker
from services.db.types import epoch_seconds
from services.gpus.rules import KNOWN_KERNEL, RULES

SEEN_WITHIN_S = 20.0
_RULES = frozenset({*RULES, KNOWN_KERNEL})
_LONGEST_NAME = 100


class Attack(BaseModel):
    """One of the self-check's attacks on the worker's own sandbox."""

    blocked: bool = False


class Ailment(BaseModel):
    """A health finding about the worker's GPU."""

    rule: str


class Report(BaseModel):
    """What a worker says of itself in `Worker.self_check`: an unverified claim, in which malformed values count as missing.

    Attributes:
        device: the environment that the referee found.
        attacks: the self-check's attacks.
        ceilings: measured rates of the device.
        busy_share: share of the last seconds in which the device was judging.
        health: health findings.
    """

    model_config = ConfigDict(frozen=True, strict=True)

    device: dict[str, Any] = {}
    attacks: list[Attack] = []
    ceilings: dict[
        Annotated[str, Field(max_length=200)], Annotated[float, Field(gt=0, allow_inf_nan=False)]
    ] = {}
    busy_share: Annotated[float, Field(allow_inf_nan=False)] | None = None
    health: list[Ailment] = []

    @field_validator("*", mode="wrap")
    @classmethod
    def _malformed_is_missing(cls, value: Any, read: Handler, info: ValidationInfo) -> Any:
        try:
            return read(value)
        except ValidationError:
            return cls.model_fields[str(info.field_name)].default

    @property
    def type(self) -> str:
        """The GPU's or processor's name; empty until the worker has detected it."""
        return type_of(self.device)


def report_of(worker: Worker) -> Report:
    """Return what a worker says of itself."""
    return Report.model_validate(worker.self_check or {})


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
        groups[worker.device, report_of(worker).type[:_LONGEST_NAME]].append(worker)
    return [_capability(*key, members) for key, members in sorted(groups.items())]


def state_of(worker: Worker) -> str:
    """The state of a live worker: `ready`, `checking` itself, or `refusing` all work."""
    return "refusing" if worker.problem is not None else "checking" if worker.tier is None else "ready"


def ailments(workers: Sequence[Worker]) -> Counter[tuple[str, str]]:
    """Count workers out of service by device and health rule; ignores unknown rules."""
    return Counter(
        (worker.device, one.rule)
        for worker in workers
        for one in report_of(worker).health
        if one.rule in _RULES
    )


def _capability(device: str, type_name: str, members: Sequence[Worker]) -> Capability:
    states = [state_of(one) for one in members]
    shares = [share for one in members if (share := report_of(one).busy_share) is not None]
    return Capability(
        device=device,
        type=type_name,
        ready=states.count("ready"),
        refusing=states.count("refusing"),
        checking=states.count("checking"),
        busy_share=sum(shares) / len(shares) if shares else None,
    )
