"""Poisons memory that a large shape's outputs will probably use, so that elements left unwritten cannot look
right.

Before the first call in a process's memory, all of it becomes NaN. In later calls a module may keep tables and
workspaces there, so only the freed memory of the previous outputs is poisoned. Otherwise it would hold old values:
a module could skip rewriting the zeros beside a triangle or behind a row, after checking a few words for them. So
some parts get much garbage and others hardly any: only reading a whole part shows that it is zero.
"""

from __future__ import annotations

import secrets

import torch

from evaluator.referee.memory.lending import ProcessMemory

#: Of this many 8-byte words, one part is garbage, in one of these densities, drawn at random.
_PART_WORDS, _ONE_IN = 1 << 13, (1, 2, 16, 128, 1024)
_PIECE_WORDS = 1 << 22
_DRAWS = 1 << 15


def poison(memory: ProcessMemory, *, at_first: bool) -> None:
    """Poisons memory that a process's next outputs may use.

    The process is stopped, and has released its last outputs or will before its call.

    Args:
        memory: of the process.
        at_first: before its first call; poisons all of it, since nothing has been stored there.
    """
    if memory.returned is None and at_first:
        memory.outputs.bytes.fill_(0xFF)
    for span in memory.returned or ():
        spoil(span)


def spoil(span: torch.Tensor) -> None:
    """Fills flat bytes with ones (a NaN, -1) and zeros."""
    if len(span) < 16:
        span.fill_(0xFF)
        return
    lead = -span.storage_offset() % 8
    count = (len(span) - lead) // 8
    span[:lead].fill_(0xFF)
    span[lead + 8 * count :].fill_(0xFF)
    words = span[lead : lead + 8 * count].view(torch.int64)
    generator = torch.Generator(device=span.device).manual_seed(secrets.randbits(63))
    limits = torch.tensor([_DRAWS // one_in for one_in in _ONE_IN], dtype=torch.int32, device=span.device)
    for piece in words.split(_PIECE_WORDS):
        parts = -(-len(piece) // _PART_WORDS)
        shape = (parts, _PART_WORDS)
        which = torch.randint(len(_ONE_IN), (parts,), device=span.device, generator=generator)
        draws = torch.randint(_DRAWS, shape, dtype=torch.int32, device=span.device, generator=generator)
        garbage = (draws < limits[which][:, None]).reshape(-1)[: len(piece)]
        piece.copy_(garbage).neg_()
