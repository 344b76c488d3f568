"""Idempotency keys outlive an upgrade: a field that came later is no part of what an earlier version kept."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from services.db.models import IdempotencyKey
from services.errors import Conflict
from services.jobs import idempotency
from services.jobs.requests import EvaluateRequest
from tests.services.databases import fresh_database

#: What the version before own shapes made of the request below.
BEFORE = '{"source":null,"task":"softmax","candidate":"c","device":null,"effort":"screen","deadline_s":900.0,"priority":0}'


def test_a_key_from_before_a_field_still_stands_for_its_request(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    asked = EvaluateRequest(task="softmax", candidate="c")
    assert asked.model_dump_json(exclude=set(EvaluateRequest.LATER)) == BEFORE
    with fresh_database("sqlite", tmp_path, request) as base, base.write() as session:
        digest = hashlib.sha256(f"evaluate\n{BEFORE}".encode()).hexdigest()
        session.add(IdempotencyKey(owner_id="", key="k", body_sha256=digest, made_id="made"))
        session.flush()
        assert idempotency.earlier(session, "evaluate", asked, "k") == "made"
        other = EvaluateRequest(task="softmax", candidate="c", shapes={"visible": [{"rows": 3}]})
        with pytest.raises(Conflict):
            idempotency.earlier(session, "evaluate", other, "k")
