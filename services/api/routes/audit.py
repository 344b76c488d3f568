"""The audit log, for whoever has a key of scope admin."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from services.api.deps import AdminDep, Limit, Route, SessionDep
from services.jobs.views import Page
from services.users import audit
from services.users.views import AuditView, audit_view

router = APIRouter(route_class=Route, tags=["keys"])


@router.get("/audit")
def list_audit(
    session: SessionDep,
    caller: AdminDep,
    limit: Limit = 50,
    after: Annotated[
        int | None, Query(ge=1, le=2**62, description="id of the last entry already seen")
    ] = None,
) -> Page[AuditView]:
    """Who did what when, newest first."""
    found = [audit_view(row) for row in audit.list_entries(session, limit + 1, after)]
    shown = found[:limit]
    return Page(
        data=shown,
        has_more=len(found) > limit,
        first_id=shown[0].id if shown else None,
        last_id=shown[-1].id if shown else None,
    )
