"""Fixtures of the service tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.services.service import Service


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with its worker, shared by tests that leave it as they found it."""
    with Service(tmp_path_factory.mktemp("service")) as running:
        running.wait_until_ready()
        yield running


@pytest.fixture(scope="session")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service without a worker, for tests of what is let in: nothing is ever run."""
    environment = {"KERNELWRIGHT_MAX_BODY_BYTES": "20000"}
    with Service(tmp_path_factory.mktemp("door"), "--no-worker", environment=environment) as running:
        yield running
