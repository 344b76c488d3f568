"""All kinds of models on one split, and the one that their training shapes alone recommend."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from agent.performance import models
from agent.performance.demand import Demands, Dims, Machine
from agent.performance.features import Encoder, Told
from agent.performance.neighborhoods import folds, held_out, neighborhoods, taken
from agent.performance.scoring import Errors, Regret, errors, selection_regret

Vector = npt.NDArray[np.float64]
#: Share of the shapes that no model sees.
HELD_OUT = 0.25
_FOLDS = 4


@dataclass(frozen=True)
class Compared:
    """What the kinds of models are worth on shapes that none of them saw.

    Attributes:
        errors: of each kind, by member; ``all`` holds those of all members together.
        regret: of each kind, where members are several.
        chosen: by member, the kind with the least mean of median and 99th percentile in folds of the training shapes.
        of_chosen: errors of the chosen kinds on the held-out shapes, by member and for ``all``.
        regret_of_chosen: likewise.
        fitted: by member, the model of the chosen kind; it saw the training shapes alone.
        testing: which of the shapes were held out.
        neighborhoods: how many, both sides together.
    """

    errors: dict[str, dict[str, Errors]]
    regret: dict[str, Regret | None]
    chosen: dict[str, str]
    of_chosen: dict[str, Errors]
    regret_of_chosen: Regret | None
    fitted: dict[str, models.Model]
    testing: npt.NDArray[np.bool_]
    neighborhoods: int

    def as_fields(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "errors": {
                kind: {name: one.as_fields() for name, one in members.items()}
                for kind, members in self.errors.items()
            },
            "regret": {kind: one and one.as_fields() for kind, one in self.regret.items()},
            "chosen": self.chosen,
            "of_chosen": {name: one.as_fields() for name, one in self.of_chosen.items()},
            "regret_of_chosen": self.regret_of_chosen and self.regret_of_chosen.as_fields(),
            "train": int((~self.testing).sum()),
            "test": int(self.testing.sum()),
            "neighborhoods": self.neighborhoods,
        }


def compare(
    shapes: Sequence[Dims],
    measured: Mapping[str, Vector],
    demands: Demands,
    machine: Machine,
    *,
    seed: int = 0,
    kinds: Sequence[str] = tuple(models.KINDS),
    told: Callable[[Dims], Told] | None = None,
) -> Compared:
    """Fits every kind to every member on three quarters of the neighborhoods and asks it about the others.

    Args:
        shapes: where members were measured.
        measured: what, by member, the baseline first; not-a-number where a member may not run.
        demands: what a shape asks of a machine.
        machine: the machine.
        seed: of the split and of the fits.
        kinds: which.
        told: what else is known of a shape before anything is timed there.

    Raises:
        ValueError: too few shapes for a split.
    """
    groups = neighborhoods(shapes)
    testing = held_out(groups, HELD_OUT, seed)
    if testing.all() or not testing.any():
        raise ValueError("the shapes are all neighbors, so that none can be unseen")
    encoder = Encoder.of(shapes, demands, machine, told)
    split = _Split(shapes, groups, testing, encoder, seed)
    predicted: dict[str, dict[str, Vector]] = {kind: {} for kind in kinds}
    chosen: dict[str, str] = {}
    for name, values in measured.items():
        for kind in kinds:
            predicted[kind][name] = split.predict(kind, values)
        scores = {kind: split.inner_score(kind, values) for kind in kinds}
        chosen[name] = min(scores, key=lambda kind: scores[kind])
    truth = {name: values[testing] for name, values in measured.items()}
    best = {name: predicted[chosen[name]][name] for name in measured}
    return Compared(
        errors={kind: _errors(predicted[kind], truth) for kind in kinds},
        regret={kind: _regret(predicted[kind], truth) for kind in kinds},
        chosen=chosen,
        of_chosen=_errors(best, truth),
        regret_of_chosen=_regret(best, truth),
        fitted={name: split.fit(chosen[name], values) for name, values in measured.items()},
        testing=testing,
        neighborhoods=len(set(groups.tolist())),
    )


@dataclass(frozen=True)
class _Split:
    """Shapes of which some are held out."""

    shapes: Sequence[Dims]
    groups: npt.NDArray[np.int64]
    testing: npt.NDArray[np.bool_]
    encoder: Encoder
    seed: int

    def predict(self, kind: str, values: Vector) -> Vector:
        """At the held-out shapes; not-a-number where nothing was measured in training."""
        return self._ask(kind, values, ~self.testing, self.testing)

    def fit(self, kind: str, values: Vector) -> models.Model:
        """On all training shapes."""
        known = ~self.testing & np.isfinite(values)
        return models.fit(kind, taken(self.shapes, known), values[known], self.encoder, self.seed)

    def inner_score(self, kind: str, values: Vector) -> float:
        """Error in folds of the training neighborhoods: median and 99th percentile alike, since both are promised."""
        found: list[Vector] = []
        for fold in folds(self.groups[~self.testing], _FOLDS, self.seed):
            asked = np.zeros(len(self.shapes), dtype=np.bool_)
            asked[np.flatnonzero(~self.testing)[fold]] = True
            guesses = self._ask(kind, values, ~self.testing & ~asked, asked)
            known = np.isfinite(guesses) & np.isfinite(values[asked])
            found.append(np.abs(guesses[known] / values[asked][known] - 1.0))
        wrong = np.concatenate(found)
        if not len(wrong):
            return math.inf
        # Five times as much is promised of the 99th percentile as of the median.
        return float(np.median(wrong) + np.percentile(wrong, 99) / 5)

    def _ask(
        self, kind: str, values: Vector, known: npt.NDArray[np.bool_], asked: npt.NDArray[np.bool_]
    ) -> Vector:
        known = known & np.isfinite(values)
        if not known.any():
            return np.full(int(asked.sum()), math.nan)
        model = models.fit(kind, taken(self.shapes, known), values[known], self.encoder, self.seed)
        return model.predict(taken(self.shapes, asked))


def _errors(predicted: Mapping[str, Vector], truth: Mapping[str, Vector]) -> dict[str, Errors]:
    found: dict[str, Errors] = {}
    every: list[tuple[Vector, Vector]] = []
    for name, values in truth.items():
        known = np.isfinite(values) & np.isfinite(predicted[name])
        if known.any():
            every.append((predicted[name][known], values[known]))
            found[name] = errors(*every[-1])
    if every:
        found["all"] = errors(*(np.concatenate(column) for column in zip(*every, strict=True)))
    return found


def _regret(predicted: Mapping[str, Vector], truth: Mapping[str, Vector]) -> Regret | None:
    return selection_regret(np.column_stack(list(predicted.values())), np.column_stack(list(truth.values())))
