"""What a tool gives back is data, bounded, without our keys."""

from __future__ import annotations

import json
from typing import Any

import pytest

from services.mcp.bounded import MOST_CHARACTERS, NOTICE, answer


def test_ordinary_values_pass_as_they_are() -> None:
    value = {
        "verdict": "accepted",
        "shapes": [{"dims": {"rows": 4}, "speedup": 1.5, "ok": True, "why": None}],
    }
    assert answer(value) == {"notice": NOTICE, "result": value, "is_cut": False}


def deep(levels: int) -> Any:
    value: Any = "bottom"
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [
        {"reason": "x" * 1_000_000},
        {"findings": ["y" * 3000] * 1000},
        {"z" * 100_000: 1},
        {f"name{number}": number for number in range(100_000)},
        deep(500),
        [[["w" * 500] * 64] * 64] * 64,
        [[[[1] * 64] * 64] * 64] * 64,
    ],
)
def test_what_is_too_large_is_cut_and_said(value: Any) -> None:
    found = answer(value)
    assert found["is_cut"]
    assert len(json.dumps(found)) < 4 * MOST_CHARACTERS


def test_keys_and_control_characters_are_taken_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "sk-0123456789abcdef")
    found = answer({"reason": "\x1b[2Jthe key is sk-0123456789abcdef\nnext", "sk-0123456789abcdef": 1})
    assert found["result"] == {"reason": " [2Jthe key is ***\nnext", "***": 1}
