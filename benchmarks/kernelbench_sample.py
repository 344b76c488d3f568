"""Modules drawn from a copy of KernelBench, which is read where it lies and never copied here."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

LEVELS = ("level1", "level2", "level3")


@dataclass(frozen=True)
class Module:
    """One file of KernelBench.

    Attributes:
        name: its path as one word, ``level1__1_Square_matrix_multiplication_``; names of answers and candidates are this.
        path: where it is.
    """

    name: str
    path: Path

    @property
    def source(self) -> str:
        """Its text."""
        return self.path.read_text(encoding="utf-8")


def sample(folder: Path, count: int, seed: int) -> list[Module]:
    """So many modules of levels 1 to 3, in the order drawn.

    Raises:
        ValueError: the folder holds no levels, or fewer modules.
    """
    # In some checkouts the levels lie one folder deeper.
    root = next((one for one in (folder, folder / "KernelBench") if (one / LEVELS[0]).is_dir()), None)
    if root is None:
        raise ValueError(f"{folder} holds no {LEVELS[0]}: it is no copy of KernelBench")
    paths = sorted(
        path.relative_to(root).as_posix() for level in LEVELS for path in (root / level).glob("*.py")
    )
    if count > len(paths):
        raise ValueError(f"{folder} holds {len(paths)} modules, fewer than {count}")
    drawn = random.Random(seed).sample(paths, count)
    return [Module(path.removesuffix(".py").replace("/", "__"), root / path) for path in drawn]
