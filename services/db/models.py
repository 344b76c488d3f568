"""The tables.

jobs ──< candidates          a job's proposals, unique by source
  │──< verdicts              unique by (source, phase): never stored twice
  │──< steps                 finished steps, from which a job resumes
  │──< events                the job's log, in order; ids increase across the whole database
  │──  bundles               the zip that the user downloads
  │──  leaderboard_entries   the confirmed figure of a catalog task, if the job has one
  └──< evaluations           one (task, candidate) to judge; with a job: one of its external candidates
memory                       lessons of jobs, for later jobs; deleted with the job that they came from
leaderboards ──< leaderboard_entries, leaderboard_firsts
                             one board per task, referee and platform; its figures; its history of first places
workers                      live workers with their device and sandbox
turns                        when each user was last served, to decide whose turn is next
idempotency_keys             the row that each user's request with such a key created
users ──< api_keys ──< login_sessions    users, their keys, and browser logins
  └──< usage                 each user's usage per day
audit                        the audit log

`owner_id` of jobs and evaluations is the user that owns them, NULL for rows made without a key. It is not a foreign key: users
are never deleted, and SQLite could add one only by rebuilding the table, which would delete every row that refers to it.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

from sqlalchemy import (
    JSON,
    Date,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    String,
    Text,
    UniqueConstraint,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from services.db.types import UtcDateTime

# "cancelling" is derived from the cancel flag of a running job and never stored, so no transition can miss it.
# "waiting" is a job whose batch of requests has no answers yet (`services.jobs.batches`); no worker holds it.
STATES = ("queued", "running", "waiting", "succeeded", "failed", "cancelled")
FINAL_STATES = ("succeeded", "failed", "cancelled")


def utc_now() -> datetime:
    """Return the current time, timezone-aware, in UTC."""
    return datetime.now(UTC)


class Base(DeclarativeBase):
    """Declarative base with the column types of this database."""

    type_annotation_map = {  # noqa: RUF012 - SQLAlchemy's own protocol
        datetime: UtcDateTime,
        dict[str, Any]: JSON(none_as_null=True),
        bytes: LargeBinary,
    }


class Leased:
    """Columns of a row that one worker at a time may hold.

    Attributes:
        state: one of `STATES`.
        attempt: number of times a worker has started on the row.
        stalled_attempts: attempts since the last stored progress that ended because the worker died, or because the database
            cut them off while it answered other queries.
        faults: attempts since the last stored progress that ended in an internal fault.
        lease_owner: the worker (see `services.worker.identity`).
        lease_until: end of the lease, seconds since 1970 on the database's clock.
        sent_at: unused; kept from earlier versions.
        cancel_requested: set when a caller asks for it to stop.
        priority: see `services.jobs.turns`.
    """

    state: Mapped[str] = mapped_column(String(16), default="queued", index=True)
    attempt: Mapped[int] = mapped_column(Integer, default=0)
    stalled_attempts: Mapped[int] = mapped_column(Integer, default=0)
    faults: Mapped[int] = mapped_column(Integer, default=0, server_default="0")
    lease_owner: Mapped[str | None] = mapped_column(String(200))
    lease_until: Mapped[float | None] = mapped_column(Float)
    sent_at: Mapped[float | None] = mapped_column(Float)
    cancel_requested: Mapped[bool] = mapped_column(default=False)
    priority: Mapped[int] = mapped_column(Integer, default=0, server_default="0")
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]


class Job(Leased, Base):
    """One optimization: a task in, a bundle out. `request` holds the rest of the client's request, beyond the columns.

    `tally` is the summary that lists show of a finished job (`services.jobs.tally`); None means it must be computed.
    """

    __tablename__ = "jobs"
    __table_args__ = (
        Index("jobs_of_owner", "owner_id", "id"),
        Index("jobs_of_owner_by_state", "owner_id", "state"),
        Index("jobs_by_turn", "state", "device", "owner_id", "priority", "id"),
    )

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    owner_id: Mapped[str | None] = mapped_column(String(32))
    name: Mapped[str] = mapped_column(String(200))
    device: Mapped[str] = mapped_column(String(16))
    task_name: Mapped[str] = mapped_column(String(200))
    task_sha256: Mapped[str] = mapped_column(String(64))
    task_source: Mapped[str] = mapped_column(Text)
    from_catalog: Mapped[bool] = mapped_column(default=False)
    request: Mapped[dict[str, Any]]
    verdict: Mapped[str | None] = mapped_column(String(32))
    reason: Mapped[str | None] = mapped_column(Text)
    winner_sha256: Mapped[str | None] = mapped_column(String(64))
    summary: Mapped[dict[str, Any] | None]
    usd: Mapped[float] = mapped_column(Float, default=0.0)
    tokens: Mapped[int] = mapped_column(Integer, default=0)
    tally: Mapped[dict[str, Any] | None]


class Candidate(Base):
    """One proposed source of a job."""

    __tablename__ = "candidates"
    __table_args__ = (
        UniqueConstraint("job_id", "sha256", name="one_candidate_per_source"),
        Index("candidates_in_order", "job_id", "number"),
    )

    number: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=True)
    id: Mapped[str] = mapped_column(String(64), unique=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"))
    sha256: Mapped[str] = mapped_column(String(64))
    origin: Mapped[str] = mapped_column(String(16))
    label: Mapped[str] = mapped_column(String(200))
    parent_sha256: Mapped[str | None] = mapped_column(String(64))
    note: Mapped[str] = mapped_column(Text, default="")
    source: Mapped[str] = mapped_column(Text)
    lines: Mapped[int | None] = mapped_column(Integer)
    created_at: Mapped[datetime] = mapped_column(default=utc_now)


class Verdict(Base):
    """The referee's verdict on one candidate in one phase. The scalar columns repeat `body`, for lists and sorting.

    The key is the source, not the candidate row: the held-out verdict is on optimized.py, which is assembled and
    need not be a candidate. `outline` is `body` without the per-shape measurements, for pages that list many verdicts.
    """

    __tablename__ = "verdicts"
    __table_args__ = (UniqueConstraint("job_id", "sha256", "phase", name="one_verdict_per_phase"),)

    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"))
    sha256: Mapped[str] = mapped_column(String(64))
    phase: Mapped[str] = mapped_column(String(16))
    word: Mapped[str] = mapped_column(String(32))
    reason: Mapped[str] = mapped_column(Text)
    geomean_speedup: Mapped[float | None] = mapped_column(Float)
    ci_low: Mapped[float | None] = mapped_column(Float)
    ci_high: Mapped[float | None] = mapped_column(Float)
    traffic_speedup: Mapped[float | None] = mapped_column(Float)
    traffic_low: Mapped[float | None] = mapped_column(Float)
    traffic_high: Mapped[float | None] = mapped_column(Float)
    body: Mapped[dict[str, Any]]
    outline: Mapped[dict[str, Any] | None]
    created_at: Mapped[datetime] = mapped_column(default=utc_now)


class Step(Base):
    """A finished step of a job; its JSON value is wrapped as {"value": ...}."""

    __tablename__ = "steps"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    name: Mapped[str] = mapped_column(String(200), primary_key=True)
    value: Mapped[dict[str, Any]]
    finished_at: Mapped[datetime] = mapped_column(default=utc_now)


class Event(Base):
    """An event in a job's log. `once` deduplicates events that a resumed job reports again."""

    __tablename__ = "events"
    __table_args__ = (
        UniqueConstraint("job_id", "once", name="one_event_per_occasion"),
        Index("events_of_job", "job_id", "id"),
        {"sqlite_autoincrement": True},  # otherwise SQLite may reuse an id after a delete
    )

    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"))
    time: Mapped[datetime] = mapped_column(default=utc_now)
    name: Mapped[str] = mapped_column(String(64))
    data: Mapped[dict[str, Any]]
    once: Mapped[str | None] = mapped_column(String(200))


class Bundle(Base):
    """The finished zip, stored in the database because workers hold no durable state."""

    __tablename__ = "bundles"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    file_name: Mapped[str] = mapped_column(String(200))
    content: Mapped[bytes]
    created_at: Mapped[datetime] = mapped_column(default=utc_now)


class Evaluation(Leased, Base):
    """One (task, candidate) to judge: from POST /evaluate (at `shapes`, if given), or a job's external candidate (`job_id`)."""

    __tablename__ = "evaluations"
    __table_args__ = (
        Index("evaluations_of_owner", "owner_id", "id"),
        Index("evaluations_of_owner_by_state", "owner_id", "state"),
        Index("evaluations_by_turn", "state", "device", "owner_id", "priority", "id"),
    )

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    owner_id: Mapped[str | None] = mapped_column(String(32))
    job_id: Mapped[str | None] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), index=True)
    device: Mapped[str] = mapped_column(String(16))
    effort: Mapped[str] = mapped_column(String(16))
    deadline_s: Mapped[float] = mapped_column(default=900.0, server_default="900")
    task_name: Mapped[str] = mapped_column(String(200))
    task_sha256: Mapped[str] = mapped_column(String(64))
    task_source: Mapped[str] = mapped_column(Text)
    candidate_sha256: Mapped[str] = mapped_column(String(64))
    candidate_source: Mapped[str] = mapped_column(Text)
    origin: Mapped[str] = mapped_column(String(16), default="external")
    label: Mapped[str] = mapped_column(String(200), default="")
    shapes: Mapped[dict[str, Any] | None]
    verdict: Mapped[str | None] = mapped_column(String(32))
    reason: Mapped[str | None] = mapped_column(Text)
    result: Mapped[dict[str, Any] | None]


class MemoryEntry(Base):
    """One lesson of a job (`body` is an `agent.memory.entries.MemoryEntry`); the other columns repeat it for searching.

    `owner` determines which jobs may see it, see `services.memory.ownership`.
    """

    __tablename__ = "memory"
    __table_args__ = (
        UniqueConstraint("job_id", "kind", "sha256", name="one_entry_per_lesson"),
        Index("memory_of_owner", "owner", "device", "job_id", "id"),
    )

    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"))
    owner: Mapped[str] = mapped_column(String(32))
    kind: Mapped[str] = mapped_column(String(16))
    sha256: Mapped[str] = mapped_column(String(64))
    task_sha256: Mapped[str] = mapped_column(String(64))
    device: Mapped[str] = mapped_column(String(16))
    architecture: Mapped[str] = mapped_column(String(32))
    features: Mapped[dict[str, Any]]
    body: Mapped[dict[str, Any]]
    created_at: Mapped[datetime] = mapped_column(default=utc_now)


class Leaderboard(Base):
    """One ranking: a catalog task, a referee version and a platform (`evaluator.fingerprint.platform`)."""

    __tablename__ = "leaderboards"
    __table_args__ = (
        UniqueConstraint("task_sha256", "harness", "platform", name="one_board_per_platform"),
        Index("leaderboards_by_task", "harness", "task_name", "id"),
    )

    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=True)
    task_sha256: Mapped[str] = mapped_column(String(64))
    task_name: Mapped[str] = mapped_column(String(200))
    harness: Mapped[str] = mapped_column(String(16))
    platform: Mapped[str] = mapped_column(String(16))
    device: Mapped[str] = mapped_column(String(16))
    device_type: Mapped[str] = mapped_column(String(200))
    versions: Mapped[dict[str, Any]]
    changed_at: Mapped[datetime] = mapped_column(default=utc_now)


class LeaderboardEntry(Base):
    """One job's confirmed figure. Only `services.leaderboard` reads and writes this table.

    `live` becomes false when the same owner's same source is confirmed again, so repeating a measurement to keep the luckiest
    one gains nothing.
    """

    __tablename__ = "leaderboard_entries"
    __table_args__ = (
        Index("entries_in_order", "board_id", "live", "geomean", "id"),
        Index("entries_by_origin", "board_id", "live", "origin", "geomean", "id"),
        Index("entries_by_model", "board_id", "live", "model", "geomean", "id"),
        Index("entries_of_source", "board_id", "winner_sha256"),
    )

    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=True)
    board_id: Mapped[int] = mapped_column(ForeignKey("leaderboards.id", ondelete="CASCADE"))
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), unique=True)
    owner: Mapped[str] = mapped_column(String(64), default="")
    winner_sha256: Mapped[str] = mapped_column(String(64))
    origin: Mapped[str] = mapped_column(String(16))
    model: Mapped[str | None] = mapped_column(String(200))
    label: Mapped[str] = mapped_column(String(200))
    live: Mapped[bool] = mapped_column(default=True)
    geomean: Mapped[float] = mapped_column(Float)
    ci_low: Mapped[float] = mapped_column(Float)
    ci_high: Mapped[float] = mapped_column(Float)
    worst: Mapped[float] = mapped_column(Float)
    shapes: Mapped[int] = mapped_column(Integer)
    roofline_share: Mapped[float | None] = mapped_column(Float)
    usd: Mapped[float] = mapped_column(Float)
    entered_at: Mapped[datetime] = mapped_column(default=utc_now)


class LeaderboardFirst(Base):
    """The entry that took first place on a board, and when; it holds the place until the next row."""

    __tablename__ = "leaderboard_firsts"
    __table_args__ = (Index("firsts_of_board", "board_id", "id"),)

    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=True)
    board_id: Mapped[int] = mapped_column(ForeignKey("leaderboards.id", ondelete="CASCADE"))
    entry_id: Mapped[int] = mapped_column(
        ForeignKey("leaderboard_entries.id", ondelete="CASCADE"), index=True
    )
    since: Mapped[datetime] = mapped_column(default=utc_now)


class Worker(Base):
    """A worker process that was alive at `seen_at` (seconds since 1970, database clock)."""

    __tablename__ = "workers"

    id: Mapped[str] = mapped_column(String(200), primary_key=True)
    device: Mapped[str] = mapped_column(String(16))
    tier: Mapped[str | None] = mapped_column(String(32))
    self_check: Mapped[dict[str, Any] | None]
    problem: Mapped[str | None] = mapped_column(Text)
    seen_at: Mapped[float] = mapped_column(Float)


class Turn(Base):
    """When a worker last got one of a user's rows of a table (database clock); `owner` is "" for rows without a user."""

    __tablename__ = "turns"

    kind: Mapped[str] = mapped_column(String(16), primary_key=True)
    device: Mapped[str] = mapped_column(String(16), primary_key=True)
    owner: Mapped[str] = mapped_column(String(32), primary_key=True)
    served_at: Mapped[float] = mapped_column(Float)


class IdempotencyKey(Base):
    """The row that a user's request with this `Idempotency-Key` created, and the digest of that request.

    `owner_id` is "" for requests without an API key, because a primary key column cannot be NULL.
    """

    __tablename__ = "idempotency_keys"

    owner_id: Mapped[str] = mapped_column(String(32), primary_key=True, default="")
    key: Mapped[str] = mapped_column(String(200), primary_key=True)
    body_sha256: Mapped[str] = mapped_column(String(64))
    made_id: Mapped[str] = mapped_column(String(32))
    created_at: Mapped[datetime] = mapped_column(default=utc_now)


class User(Base):
    """An owner of jobs: a person, a team or a program. `quotas` is `services.users.quotas.Quotas` as JSON."""

    __tablename__ = "users"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    name: Mapped[str] = mapped_column(String(64), unique=True)
    quotas: Mapped[dict[str, Any]] = mapped_column(default=dict)
    created_at: Mapped[datetime] = mapped_column(default=utc_now)


class ApiKey(Base):
    """A user's API key. Only the prefix and a SHA-256 of its text are stored, see `services.users.keys`.

    Attributes:
        name: the owner's name for it.
        prefix: the beginning of the text; identifies the key in lists and lookups.
        sha256: of the whole text, in hex.
        scope: one of `services.users.caller.SCOPES`.
        replaced_by: the key that replaced it on rotation; both are valid until `expires_at`.
        last_used_at: to the minute.
    """

    __tablename__ = "api_keys"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), index=True)
    name: Mapped[str] = mapped_column(String(64))
    prefix: Mapped[str] = mapped_column(String(16), unique=True)
    sha256: Mapped[str] = mapped_column(String(64))
    scope: Mapped[str] = mapped_column(String(16))
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    replaced_by: Mapped[str | None] = mapped_column(String(32))
    last_used_at: Mapped[datetime | None]


class LoginSession(Base):
    """A browser login made with a key. The browser holds a token; only its SHA-256 is stored."""

    __tablename__ = "login_sessions"

    token_sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    key_id: Mapped[str] = mapped_column(ForeignKey("api_keys.id", ondelete="CASCADE"), index=True)
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    expires_at: Mapped[datetime] = mapped_column(index=True)


class Usage(Base):
    """Usage by a user's jobs and evaluations on one day (UTC), checked against quotas."""

    __tablename__ = "usage"

    user_id: Mapped[str] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), primary_key=True)
    day: Mapped[date] = mapped_column(Date, primary_key=True)
    candidates: Mapped[int] = mapped_column(Integer, default=0)
    usd: Mapped[float] = mapped_column(Float, default=0.0)
    gpu_seconds: Mapped[float] = mapped_column(Float, default=0.0)
    cpu_seconds: Mapped[float] = mapped_column(Float, default=0.0)


class AuditEntry(Base):
    """One audit log entry: caller, action, time, and the HTTP status of the response (200 from the command line)."""

    __tablename__ = "audit"

    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=True)
    time: Mapped[datetime] = mapped_column(default=utc_now)
    user_name: Mapped[str | None] = mapped_column(String(64))
    key_prefix: Mapped[str | None] = mapped_column(String(16))
    address: Mapped[str | None] = mapped_column(String(64))
    action: Mapped[str] = mapped_column(String(100))
    target: Mapped[str | None] = mapped_column(String(100))
    status: Mapped[int] = mapped_column(Integer)
    detail: Mapped[str] = mapped_column(Text, default="")
