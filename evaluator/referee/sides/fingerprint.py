"""A keyed sum over device memory: detects writes without a copy to compare with."""

from __future__ import annotations

import secrets

import torch

#: 8-byte words that are added up at a time.
_WORDS = 1 << 24


def fingerprint(span: torch.Tensor, key: int | None = None) -> tuple[int, int]:
    """A key and a keyed sum over flat bytes.

    Any change alters the sum, and without the key it cannot be compensated.
    """
    key = secrets.randbits(62) | 1 if key is None else key
    # Products wrap around; odd factors lose nothing.
    factors = torch.arange(_WORDS + 8, device=span.device, dtype=torch.int64).mul_(2).add_(1).mul_(key)
    total = torch.zeros((), device=span.device, dtype=torch.int64)
    for number, piece in enumerate(span.split(8 * _WORDS)):
        part = piece.clone() if piece.storage_offset() % 8 else piece
        count = len(part) // 8
        words, rest = part[: 8 * count].view(torch.int64), part[8 * count :].to(torch.int64)
        of_part = (words * factors[:count]).sum() + (rest * factors[count : count + len(rest)]).sum()
        total += of_part * (2 * number + 1)
    return key, int(total)
