"""A shape that is open in the reference process, and the ways to run the reference there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from evaluator.errors import RoleReported
from evaluator.integrity.static import clean
from evaluator.referee.sides.block import Block
from evaluator.referee.sides.shape_inputs import ShapeInputs
from evaluator.referee.sides.side import Side
from evaluator.roles.frames import TensorMeta
from evaluator.shapes.space import Dims, in_words
from evaluator.verdict import Finding

#: Limits on what a process may report about its compiler.
_MOST, _MOST_REASONS, _MOST_LETTERS = 1 << 20, 3, 160


@dataclass
class Baseline:
    """One way a user could run the reference: mode and threads, with its time at one shape.

    Attributes:
        code: digest of the compiler's output; empty if unknown.
        same_as: name of another baseline with as many threads and the same generated code, which is timed for
            both.
        made: the compiler's counts: ``graphs``, ``graph_breaks`` between them, some ``reasons`` (line, words) and
            generated ``kernels``; empty if unknown.
    """

    name: str
    mode: str
    threads: int
    median_us: float = 0.0
    failure: str = ""
    code: str = ""
    same_as: str = ""
    made: dict[str, Any] = field(default_factory=dict)

    def run(
        self,
        side: Side,
        calls: int,
        *,
        captured: bool = False,
        same_slot: bool = False,
        while_running: Callable[[], None] = lambda: None,
    ) -> Block:
        """Runs one timed block with fresh contents, see :meth:`Side.timed`. Adds memory if its process has too little."""
        while True:
            try:
                return side.timed(
                    calls,
                    self.name,
                    threads=self.threads,
                    captured=captured,
                    same_slot=same_slot,
                    while_running=while_running,
                )
            except RoleReported as failure:
                if captured or not side.grows_for(failure):
                    raise

    def told(self, answer: dict[str, Any]) -> str:
        """Records what the process reports about its compiler, which only describes. Returns the code's digest."""
        try:
            made = answer["made"]
            reasons = [
                [min(int(line), _MOST), clean(words, _MOST_LETTERS)]
                for line, words in made["reasons"][:_MOST_REASONS]
            ]
            counts = {
                name: min(max(int(made[name]), 0), _MOST) for name in ("graphs", "graph_breaks", "kernels")
            }
            self.made = {**counts, "reasons": reasons}
        except (KeyError, TypeError, ValueError):
            pass  # nothing was counted, or the report has another form
        return str(answer.get("code") or "")[:64]


@dataclass
class ShapeChecks:
    """What checks found out about the reference at a shape; it holds for the next candidate too.

    Attributes:
        notes: what verdicts say about these checks.
        cases: small contents with their expectations, which no candidate has seen before; empty if not kept.
        cases_bytes: what these take.
        usual: per output, the root mean square for the task's own inputs.
        signs: inputs of both signs are valid.
        by_rows: at a large shape, the reference treats rows independently; None if not tested.
        in_training: its result changes in train mode; None if not tested.
        spoiled: a content with NaN and Inf, and what these do not reach; empty if there is none, None if not made.
        observation: what the reference runs; empty if that cannot be seen, None if not tried.
    """

    notes: list[Finding] = field(default_factory=list)
    cases: list[Any] = field(default_factory=list)
    cases_bytes: int = 0
    usual: list[float] = field(default_factory=list)
    signs: bool = True
    by_rows: bool | None = None
    in_training: bool | None = None
    spoiled: tuple[Any, ...] | None = None
    observation: tuple[Any, ...] | None = None

    def note(self, rule: str, sentence: str) -> None:
        """Adds a note, once."""
        note = Finding(rule, "info", sentence)
        if note not in self.notes:
            self.notes.append(note)


@dataclass
class OpenShape:
    """A shape that is open in the reference process."""

    dims: Dims
    key: int
    inputs: ShapeInputs
    side: Side
    output_metas: tuple[TensorMeta, ...] = ()
    #: Outputs that the reference itself returns as views of its inputs.
    aliased: frozenset[int] = frozenset()
    baselines: list[Baseline] = field(default_factory=list)
    checks: ShapeChecks = field(default_factory=ShapeChecks)
    #: Whether the modes that take long to compile are among its baselines.
    thorough: bool = False
    #: Of the task: its precision tier, and whether it has an oracle of its own.
    precision: str = "strict"
    own_oracle: bool = False
    ranked: bool = False
    #: Times come from an earlier referee, and only :attr:`contenders` are loaded.
    remembered: bool = False
    #: The earlier referee's times were not confirmed and are not used again.
    distrusted: bool = False

    @property
    def where(self) -> str:
        """The shape in words."""
        return in_words(self.dims)

    @property
    def large(self) -> bool:
        """Whether it is checked in pieces, see :mod:`evaluator.referee.checking.large`."""
        return self.side.gpu and self.inputs.needs.large

    @property
    def working(self) -> list[Baseline]:
        """The baselines that are timed: none that failed, and one of each group with the same code."""
        return [baseline for baseline in self.baselines if not baseline.failure and not baseline.same_as]

    @property
    def contenders(self) -> list[Baseline]:
        """The two fastest baselines, and the best one with another number of threads."""
        working = sorted(self.working, key=lambda b: b.median_us)
        return [*working[:2], *(rival for rival in self.rivals if rival not in working[:2])]

    @property
    def best(self) -> Baseline:
        return min(self.working, key=lambda baseline: baseline.median_us)

    @property
    def rivals(self) -> list[Baseline]:
        """The best baseline, and the best one with another number of threads.

        If another program takes a core, the ranking among thread counts can reverse, by a factor of ten where
        threads wait for one another. So a ranking made seconds ago does not decide alone.
        """
        best = self.best
        others = [b for b in self.working if b.threads != best.threads]
        return [best, *sorted(others, key=lambda baseline: baseline.median_us)[:1]]

    def lacks(self, *, thorough: bool, every: bool) -> bool:
        """Whether baselines must be loaded before timing: the slow ones if ``thorough``, or ``every`` one,
        remembered or not.
        """
        return not self.baselines or (every and self.remembered) or (thorough and not self.thorough)

    def find_same(self) -> None:
        """Marks baselines with the same code as another: max-autotune changes nothing if there is nothing to tune."""
        first: dict[tuple[str, int], str] = {}
        for baseline in self.baselines:
            if baseline.code and not baseline.failure:
                name = first.setdefault((baseline.code, baseline.threads), baseline.name)
                baseline.same_as = name if name != baseline.name else ""


def freeze_dims(dims: Dims) -> tuple[tuple[str, Any], ...]:
    """A hashable form of a shape."""
    return tuple(sorted(dims.items()))
