"""Programs of the dialect: a family and what it chooses, told from any other text by their phrases."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType

from evaluator.sources import CandidateSource
from experiments.dialect import cpp, triton_text
from experiments.dialect.tasks import FAMILIES

_WRITERS: dict[str, ModuleType] = {"cpu": cpp, "cuda": triton_text}
SIZES = ("small", "full")


@dataclass(frozen=True)
class Program:
    """A program: ``choices`` are pairs of a name and a value, in the grammar's order."""

    device: str
    family: str
    choices: tuple[tuple[str, str], ...]

    @cached_property
    def pieces(self) -> tuple[str, ...]:
        """Its phrases, a token each."""
        return tuple(_WRITERS[self.device].pieces(self.family, dict(self.choices)))

    @cached_property
    def source(self) -> str:
        """The candidate's file."""
        return "".join(self.pieces)

    @property
    def name(self) -> str:
        """For tables: family and values."""
        return "/".join([self.family, *(value.replace(" ", "_") for _, value in self.choices)])

    @property
    def candidate(self) -> CandidateSource:
        """For the referee."""
        return CandidateSource(self.source, origin="policy", label=self.name)


@dataclass(frozen=True)
class Grammar:
    """All programs of a device at one size: ``small`` is measured within minutes, ``full`` is what a GPU run takes."""

    device: str
    size: str
    families: tuple[str, ...] = FAMILIES

    def __post_init__(self) -> None:
        if self.device not in _WRITERS or self.size not in SIZES:
            raise ValueError(
                f"no grammar {self.size!r} for {self.device!r}; sizes: {SIZES}, devices: {tuple(_WRITERS)}"
            )

    def of_family(self, family: str) -> list[Program]:
        """A family's programs, in a fixed order."""
        writer = _WRITERS[self.device]
        offered = writer.choices(family, self.size)
        every = [tuple(zip(offered, values, strict=True)) for values in itertools.product(*offered.values())]
        return [
            Program(self.device, family, chosen) for chosen in every if writer.possible(family, dict(chosen))
        ]

    @cached_property
    def programs(self) -> list[Program]:
        """Every program."""
        return [program for family in self.families for program in self.of_family(family)]

    @cached_property
    def by_source(self) -> dict[str, Program]:
        """What a text is, if it is a program: a text that is none has no cell in any table."""
        return {program.source: program for program in self.programs}

    @cached_property
    def phrases(self) -> list[str]:
        """The vocabulary, sorted."""
        return sorted({piece for program in self.programs for piece in program.pieces})


def describe(programs: Sequence[Program]) -> str:
    """One line: how many programs, families and phrases."""
    families = {program.family for program in programs}
    vocabulary = {piece for program in programs for piece in program.pieces}
    longest = max(len(program.pieces) for program in programs)
    return (
        f"{len(programs)} programs of {len(families)} families, {len(vocabulary)} phrases, longest {longest}"
    )
