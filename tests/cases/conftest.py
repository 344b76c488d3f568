"""A referee for each file of cases."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from evaluator.client import Referee


@pytest.fixture(scope="module")
def referee(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Referee]:
    with Referee("cpu", work_dir=tmp_path_factory.mktemp("referee")) as running:
        yield running
