"""Where a large shape's outputs will lie there is garbage, in some parts so little that looking at samples does not find it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from evaluator.referee.memory import poisoning as spoiling

WORDS = 1 << 18


def memory(returned: list[torch.Tensor] | None) -> Any:
    return SimpleNamespace(
        outputs=SimpleNamespace(bytes=torch.zeros(1000, dtype=torch.uint8)), returned=returned
    )


@pytest.mark.parametrize("starts", [0, 3])
@pytest.mark.parametrize("length", [0, 5, 8, 1003, 8 * WORDS + 5])
def test_all_of_it_is_ones_or_zeros(starts: int, length: int) -> None:
    around = torch.full((starts + length + 16,), 7, dtype=torch.uint8)
    span = around[starts : starts + length]
    spoiling.spoil(span)
    assert set(span.unique().tolist()) <= {0x00, 0xFF}
    assert bool((around[:starts] == 7).all()) and bool((around[starts + length :] == 7).all())


def test_no_output_is_right_that_was_not_written() -> None:
    """Whatever it should be: a number, zero, minus one, true."""
    span = torch.zeros(8 * WORDS, dtype=torch.uint8)
    spoiling.spoil(span)
    for part in span.split(64 << 10):
        assert bool(part.view(torch.float32).isnan().any())
    for dtype, right in ((torch.float32, 0.0), (torch.int64, -1), (torch.int8, -1), (torch.bool, True)):
        assert int((span.view(dtype) != right).sum()) > WORDS // 4


def test_who_looks_at_some_words_takes_for_written_what_is_not() -> None:
    """A part of 4 KiB whose eight sampled words are zero is not all zeros."""
    span = torch.ones(8 * WORDS, dtype=torch.uint8)
    spoiling.spoil(span)
    parts = span.view(torch.int64).view(-1, 512)
    looks_written = (parts[:, ::64] == 0).all(dim=1)
    assert int((looks_written & (parts != 0).any(dim=1)).sum()) > len(parts) // 20


def test_nobody_knows_where() -> None:
    one, other = (torch.zeros(8 * WORDS, dtype=torch.uint8) for _ in range(2))
    spoiling.spoil(one)
    spoiling.spoil(other)
    assert not torch.equal(one, other)


def test_before_the_first_call_of_a_process_all_of_its_memory_is_nan() -> None:
    first = memory(None)
    spoiling.poison(first, at_first=True)
    assert bool((first.outputs.bytes == 0xFF).all())
    timed = memory(None)
    spoiling.poison(timed, at_first=False)
    assert not timed.outputs.bytes.any()


def test_later_only_the_last_outputs_are_spoiled_and_not_what_a_module_keeps_beside_them() -> None:
    """A table made in the first call became NaN, and a candidate that was right was called wrong."""
    later = memory([])
    later.returned = [later.outputs.bytes[512:768]]
    spoiled = 0
    for _ in range(60):
        later.outputs.bytes.zero_()
        spoiling.poison(later, at_first=True)
        spoiled += bool(later.outputs.bytes[512:768].any())
    # Of so few words there is often no garbage at all.
    assert spoiled > 0
    assert not later.outputs.bytes[:512].any() and not later.outputs.bytes[768:].any()
