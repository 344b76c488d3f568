"""What several of these tests start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from evaluator.referee.judging.core import RefereeCore


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RefereeCore]:
    """A referee of the CPU with a work folder of its own."""
    core = RefereeCore("cpu", tmp_path_factory.mktemp("referee"), "landlock")
    try:
        yield core
    finally:
        core.close()
