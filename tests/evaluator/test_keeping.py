"""What is kept is whole, and a disk that takes nothing is no reason to fail."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from evaluator.keeping import keep_json


def test_a_file_takes_the_place_of_an_older_one(tmp_path: Path) -> None:
    for value in ({"a": 1}, {"a": 2}):
        keep_json(tmp_path / "kept.json", value)
    assert json.loads((tmp_path / "kept.json").read_text()) == {"a": 2}
    assert [path.name for path in tmp_path.iterdir()] == ["kept.json"]


def test_what_cannot_be_written_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        keep_json(tmp_path / "gone" / "kept.json", {"a": 1})
    assert "could not store kept.json" in caplog.text
