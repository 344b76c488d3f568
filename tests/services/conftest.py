"""Fixtures of the service tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.services.databases import BOTH_DATABASES, fresh_database
from tests.services.filled import Filled, fill
from tests.services.service import Service


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with its worker, shared by tests that leave it as they found it."""
    with Service(tmp_path_factory.mktemp("service")) as running:
        running.wait_until_ready()
        yield running


@pytest.fixture(scope="session")
def ahead(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service as users start it: baselines are compiled ahead, which takes the cores."""
    with Service(
        tmp_path_factory.mktemp("ahead"), environment={"KERNELWRIGHT_COMPILE_AHEAD": "1"}
    ) as running:
        running.wait_until_ready()
        yield running


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with its worker whose verdicts were recorded once: for what happens around them, not for what is judged."""
    environment = {"SCRIPTED_SECONDS": "0.05"}
    folder, program = tmp_path_factory.mktemp("recorded"), "tests.services.scripted_service"
    with Service(folder, environment=environment, program=program) as running:
        running.wait_until_ready()
        yield running


@pytest.fixture(scope="session")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service without a worker, for tests of what is let in: nothing is ever run."""
    environment = {"KERNELWRIGHT_MAX_BODY_BYTES": "20000"}
    with Service(tmp_path_factory.mktemp("door"), "--no-worker", environment=environment) as running:
        yield running


def _filled(
    kind: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Filled]:
    folder = tmp_path_factory.mktemp("filled")
    with fresh_database(kind, folder, request) as base:
        jobs = fill(base)
        url = base.engine.url.render_as_string(hide_password=False)
        environment = {"KERNELWRIGHT_DATABASE_URL": url}
        program = "tests.services.looking_service"
        with Service(folder / "data", "--no-worker", environment=environment, program=program) as running:
            yield Filled(running, base, jobs)


@pytest.fixture(scope="session")
def filled_sqlite(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Filled]:
    """See `filled`."""
    yield from _filled("sqlite", request, tmp_path_factory)


@pytest.fixture(scope="session")
def filled_postgres(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Filled]:
    """See `filled`."""
    yield from _filled("postgres", request, tmp_path_factory)


@pytest.fixture(scope="session", params=BOTH_DATABASES)
def filled(request: pytest.FixtureRequest) -> Filled:
    """A service without a worker over a database of each kind that holds ranked jobs; tests may add others.

    Each is started once for all files, though the files ask for the one and the other in turn.
    """
    found: Filled = request.getfixturevalue(f"filled_{request.param}")
    return found
