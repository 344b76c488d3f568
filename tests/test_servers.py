"""The servers that other tests build on start, answer and go away."""

from __future__ import annotations

import pytest
import redis
import sqlalchemy


@pytest.mark.services("redis")
def test_redis_answers(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        client.set("word", "kernel")
        assert client.get("word") == b"kernel"


@pytest.mark.services("postgres")
def test_postgres_answers(postgres_url: str) -> None:
    engine = sqlalchemy.create_engine(postgres_url)
    with engine.connect() as connection:
        version = connection.execute(sqlalchemy.text("show server_version_num")).scalar_one()
    engine.dispose()
    assert int(version) >= 140000
