"""What several of these tests start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from evaluator.referee.judging.core import RefereeCore


@pytest.fixture(scope="session")
def core_of_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RefereeCore]:
    """A referee of the CPU in this process, with a work folder of its own."""
    core = RefereeCore("cpu", tmp_path_factory.mktemp("core"), "landlock")
    try:
        yield core
    finally:
        core.close()


@pytest.fixture(scope="module")
def core(core_of_all: RefereeCore) -> Iterator[RefereeCore]:
    """That one for a file of tests: no task is open when the file begins, and what it replaces comes back when it ends."""
    core, fleet = core_of_all, core_of_all.fleet
    before = dict(vars(core)), dict(vars(fleet))
    yield core
    for session in core._sessions.values():
        session.close()
    core._sessions.clear()
    for changed, attributes in zip((core, fleet), before, strict=True):
        vars(changed).update(attributes)
        for name in vars(changed).keys() - attributes.keys():
            delattr(changed, name)
