"""What comes out of the sandbox is untrusted: its form is checked before anything else looks at it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agent.compiler.capture import MAX_CAPTURE_BYTES, read_capture
from agent.errors import ProposalFailed

RECORDED = json.loads((Path(__file__).parent / "data" / "matmul_bias_relu.cpu.json").read_text())


def altered(*path: str | int, value: Any) -> bytes:
    raw = json.loads(json.dumps(RECORDED))
    place = raw
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return json.dumps(raw).encode()


def test_reads_what_was_recorded() -> None:
    capture = read_capture(json.dumps(RECORDED).encode())
    assert capture.reason == ""
    assert [value.name for value in capture.variants[0].arguments] == ["x"]
    assert [value.name for value in capture.variants[0].state] == ["weight", "bias"]
    assert {symbol.name: symbol.least for symbol in capture.variants[0].symbols} == {
        "rows": 1,
        "inner": 8,
        "outer": 8,
    }


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b"[" * 50_000,
        b" " * (MAX_CAPTURE_BYTES + 1),
        altered("schema", value="something else"),
        altered("variants", value=[]),
        altered("variants", value=[3]),
        altered("variants", 0, "module", value=None),
        altered("variants", 0, "guards", value=[1]),
        altered("variants", 0, "symbols", "rows", "symbol", value="s0); import os; ("),
        altered("variants", 0, "symbols", "rows", "min", value="many"),
        altered("variants", 0, "arguments", 0, "kind", value="opaque"),
        altered("variants", 0, "arguments", 0, "dtype", value="float32)"),
    ],
)
def test_refuses_another_form(data: bytes) -> None:
    with pytest.raises(ProposalFailed):
        read_capture(data)


def test_a_reason_means_no_variants() -> None:
    capture = read_capture(altered("error", value="it draws random numbers"))
    assert capture.variants == ()
    assert capture.reason == "it draws random numbers"
