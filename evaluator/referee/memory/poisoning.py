"""Garbage in the memory where the outputs of a large shape are likely to lie, so that what is not written cannot look right.

Before the first call in a process's memory all of it becomes NaN. Later calls find tables and workspaces there that a module has made and
keeps, so only the memory of the outputs before is spoiled, which is free again. It would else hold what was written
there: the zeros beside a triangle or behind a row need not be written twice, and a look at some words tells whether they are
there. So there is much garbage in some parts and hardly any in others: to know that a part is zero takes reading it.
"""

from __future__ import annotations

import secrets

import torch

from evaluator.referee.memory.lending import ProcessMemory

#: Of so many words of 8 bytes, one part in so many is garbage; which of these, is drawn.
_PART_WORDS, _ONE_IN = 1 << 13, (1, 2, 16, 128, 1024)
_PIECE_WORDS = 1 << 22
_DRAWS = 1 << 15


def poison(memory: ProcessMemory, *, at_first: bool) -> None:
    """Spoils what a process's next outputs may get; while it is stopped, and has forgotten its last ones or will before its call.

    Args:
        memory: of the process.
        at_first: before its first call all of it, since nothing has been made there.
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
