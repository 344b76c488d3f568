"""One warm referee for the whole corpus, as in service."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from evaluator.client import Referee


@pytest.fixture(scope="session")
def referee(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Referee]:
    with Referee("cpu", work_dir=tmp_path_factory.mktemp("corpus")) as running:
        yield running
