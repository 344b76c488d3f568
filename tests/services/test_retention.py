"""The audit log keeps a year, or what the operator says, and tells of what it lets go."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from pydantic import ValidationError
from sqlalchemy import select

from services.db.models import AuditEntry, utc_now
from services.db.session import Database
from services.settings import Settings
from services.users import audit
from services.worker.dispatch import Dispatcher
from tests.services.databases import BOTH_DATABASES, fresh_database
from tests.services.service import wait_until


@pytest.fixture(params=BOTH_DATABASES)
def base(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    with fresh_database(request.param, tmp_path, request) as found:
        with found.write() as session:
            for days in (400, 366, 364, 0):
                time = utc_now() - timedelta(days=days)
                session.add(AuditEntry(time=time, action=f"{days} days ago", status=200))
        yield found


def actions(base: Database) -> list[str]:
    with base.read() as session:
        return list(session.scalars(select(AuditEntry.action).order_by(AuditEntry.id)))


def test_old_entries_go_in_small_pieces_and_each_is_told_of(
    base: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "_PURGED_AT_ONCE", 1)
    assert audit.purge(base, 365) == 2
    assert actions(base) == ["364 days ago", "0 days ago", "audit purged", "audit purged"]
    with base.read() as session:
        told = audit.list_entries(session, 1)[0]
    assert told.detail.startswith("1 entry from before ")
    assert (told.user_name, told.address) == (None, "this service")
    assert audit.purge(base, 365) == 0
    assert len(actions(base)) == 4, "what is kept is not told of every day"


def test_none_go_where_all_are_kept(base: Database) -> None:
    assert audit.purge(base, 0) == 0
    assert len(actions(base)) == 4


def test_a_service_purges_by_itself(base: Database) -> None:
    dispatcher = Dispatcher(base, lambda *_: None, 3, Settings().audit_days)
    dispatcher.start()
    try:
        wait_until(lambda: "audit purged" in actions(base), 10, lambda: str(actions(base)))
    finally:
        dispatcher.stop()
    assert actions(base)[:2] == ["364 days ago", "0 days ago"]


@pytest.mark.parametrize("days", ["-1", "36501", "a year"])
def test_a_span_that_is_none_is_refused(days: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELWRIGHT_AUDIT_DAYS", days)
    with pytest.raises(ValidationError):
        Settings()
