"""What a role sends is checked before anything uses it."""

from __future__ import annotations

import random

import pytest

from evaluator.roles import frames
from evaluator.roles.frames import BlockReport, FrameError, TensorMeta


def _report(calls: int = 3, outputs: int = 2) -> BlockReport:
    metas = tuple(TensorMeta("float32", (4, 5), (5, 1)) for _ in range(outputs))
    addresses = tuple(tuple(4096 * (call + 1) + i for i in range(outputs)) for call in range(calls))
    return BlockReport(metas, addresses, tuple(range(calls)))


def _encoded(report: BlockReport) -> bytes:
    addresses = [list(row) for row in report.addresses]
    return frames.encode_report(report.metas, addresses, list(report.states))


def test_a_report_survives_the_way() -> None:
    report = _report()
    assert frames.decode_report(_encoded(report), 3) == report


@pytest.mark.parametrize("calls", [1, 2, 4])
def test_a_report_of_another_number_of_calls_is_refused(calls: int) -> None:
    with pytest.raises(FrameError):
        frames.decode_report(_encoded(_report(3)), calls)


def test_every_truncation_is_refused() -> None:
    payload = _encoded(_report())
    for length in range(len(payload)):
        with pytest.raises(FrameError):
            frames.decode_report(payload[:length], 3)


def test_random_bytes_never_pass_for_more_than_they_are() -> None:
    generator = random.Random(7)
    for _ in range(2000):
        noise = generator.randbytes(generator.randrange(0, 400))
        try:
            report = frames.decode_report(noise, generator.randrange(1, 4))
        except FrameError:
            continue
        for meta in report.metas:
            assert meta.dtype in frames.DTYPES
            assert meta.span_bytes < 1 << 38


@pytest.mark.parametrize(
    "meta",
    [
        TensorMeta("float32", (1 << 20, 1 << 20), (1 << 20, 1)),
        TensorMeta("float32", (2,), (1 << 41,)),
        TensorMeta("float32", (1 << 41,), (1,)),
    ],
)
def test_absurd_tensors_are_refused(meta: TensorMeta) -> None:
    with pytest.raises(FrameError):
        frames.decode_meta(frames.encode_meta(meta), 0)


def test_a_header_must_answer_the_question() -> None:
    header = frames.encode(7, frames.STATUS_OK, 41, b"")[: frames.HEADER_BYTES]
    assert frames.decode_header(header, 7, 41) == (frames.STATUS_OK, 0)
    for operation, sequence in ((7, 42), (8, 41)):
        with pytest.raises(FrameError):
            frames.decode_header(header, operation, sequence)
    with pytest.raises(FrameError):
        frames.decode_header(b"\x00" * frames.HEADER_BYTES, 7, 41)


def test_span_covers_strided_tensors() -> None:
    assert TensorMeta("float32", (3, 4), (8, 1)).span_bytes == (2 * 8 + 3 + 1) * 4
    assert TensorMeta("bfloat16", (0, 4), (4, 1)).span_bytes == 0
    assert not TensorMeta("float32", (3, 4), (1, 3)).contiguous
    assert TensorMeta("float32", (1, 4), (99, 1)).contiguous
