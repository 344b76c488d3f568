"""Joules per call over shapes: what the hardware spends on time, on operations and on bytes, and what is left over.

    joules = a + b time + c operations + d operations on padding + e bytes        with no price below zero

The time of a shape that nobody measured is itself predicted (:mod:`agent.performance.models`), so an energy model is asked
with a time. A model of watts is the same of watts times time: a GPU draws what its arithmetic and its memory do per second,
which is smoother over shapes than either.

Three kinds: the law alone, boosted trees on what it leaves, and a Gaussian process of the watts, which does best from few shapes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from agent.performance.demand import Dims
from agent.performance.features import Encoder, Matrix, tier
from agent.performance.neighborhoods import folds, neighborhoods, taken
from agent.performance.scoring import Errors, errors

Vector = npt.NDArray[np.float64]
_FOLDS = 4
#: With so many tiles for each unit, further ones change nothing that power depends on.
_SATURATED_WAVES = 4.0


@dataclass(frozen=True)
class EnergyModel:
    """A fitted model.

    Attributes:
        kind: one of :data:`KINDS`.
        joules: from shapes and microseconds per call there to joules per call.
    """

    kind: str
    joules: Callable[[Sequence[Dims], Vector], Vector]


def fit(
    kind: str, shapes: Sequence[Dims], joules: Vector, times_us: Vector, encoder: Encoder, seed: int = 0
) -> EnergyModel:
    """A model of measured joules.

    Args:
        kind: one of :data:`KINDS`.
        shapes: where they were measured.
        joules: per call, above 0.
        times_us: of a call there.
        encoder: features of the shapes.
        seed: of what is random in the fit.
    """
    if kind == "gaussian_process":
        return EnergyModel(kind, _smooth_power(shapes, joules, times_us, encoder, seed))
    if kind not in KINDS:
        raise ValueError(f"no energy model is called {kind!r}; known: {', '.join(KINDS)}")
    law = _law(shapes, joules, times_us, encoder)
    if kind == "analytic":
        return EnergyModel(kind, law)

    def matrix(asked: Sequence[Dims], times: Vector) -> Matrix:
        demands = [encoder.demands(shape) for shape in asked]
        rates = [
            [np.log(demand.operations / time), np.log(demand.moved_bytes / time)]
            for demand, time in zip(demands, times, strict=True)
        ]
        return np.column_stack([encoder.matrix(asked), np.array(rates), np.log(law(asked, times) / times)])

    regressor = _small_boosting(seed)
    regressor.fit(matrix(shapes, times_us), np.log(joules / law(shapes, times_us)))
    return EnergyModel(
        kind,
        lambda asked, times: law(asked, times) * np.exp(np.asarray(regressor.predict(matrix(asked, times)))),
    )


KINDS = ("analytic", "boosted_residual", "gaussian_process")


@dataclass(frozen=True)
class EnergyCompared:
    """Energy models on shapes that neither they nor the runtime model saw.

    Attributes:
        energy: relative errors of joules per call, by kind.
        power: likewise of watts.
        chosen: kind with the least median error in folds of the training shapes.
        train, test: how many shapes.
    """

    energy: dict[str, Errors]
    power: dict[str, Errors]
    chosen: str
    train: int
    test: int

    def as_fields(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "energy": {kind: one.as_fields() for kind, one in self.energy.items()},
            "power": {kind: one.as_fields() for kind, one in self.power.items()},
            "chosen": self.chosen,
            "train": self.train,
            "test": self.test,
        }


def compare(
    shapes: Sequence[Dims],
    joules: Vector,
    watts: Vector,
    testing: npt.NDArray[np.bool_],
    times_us: Vector,
    predict_us: Callable[[Sequence[Dims]], Vector],
    encoder: Encoder,
    seed: int = 0,
) -> EnergyCompared | None:
    """Fits every kind on the training shapes and asks it, with predicted times, about the others.

    Args:
        shapes: where energy was measured.
        joules: per call there.
        watts: meanwhile.
        testing: which of them are held out.
        times_us: measured time of a call, of the same kind as what is predicted; used for training shapes alone.
        predict_us: a runtime model that did not see the held-out shapes.
        encoder: features of the shapes.
        seed: of what is random.

    Returns:
        None where either side has too few shapes.
    """
    training = ~testing
    if training.sum() < 2 * _FOLDS or testing.sum() < 2:
        return None
    known = taken(shapes, training)
    asked = taken(shapes, testing)
    predicted_us = predict_us(asked)
    energy, power, scores = {}, {}, {}
    drawn = watts * times_us / 1e6
    for kind in KINDS:
        model = fit(kind, known, joules[training], times_us[training], encoder, seed)
        energy[kind] = errors(model.joules(asked, predicted_us), joules[testing])
        # Under a power cap calls take longer for seconds than for the moment in which they are timed: watts have a fit of their own.
        model = fit(kind, known, drawn[training], times_us[training], encoder, seed)
        power[kind] = errors(model.joules(asked, predicted_us) / predicted_us * 1e6, watts[testing])
        scores[kind] = _inner_error(kind, known, joules[training], times_us[training], encoder, seed)
    chosen = min(scores, key=lambda kind: scores[kind])
    return EnergyCompared(energy, power, chosen, int(training.sum()), int(testing.sum()))


def _inner_error(
    kind: str, shapes: Sequence[Dims], joules: Vector, times_us: Vector, encoder: Encoder, seed: int
) -> float:
    wrong: list[Vector] = []
    for fold in folds(neighborhoods(shapes), _FOLDS, seed):
        if fold.all():
            continue
        known = taken(shapes, ~fold)
        asked = taken(shapes, fold)
        model = fit(kind, known, joules[~fold], times_us[~fold], encoder, seed)
        wrong.append(np.abs(model.joules(asked, times_us[fold]) / joules[fold] - 1.0))
    return float(np.median(np.concatenate(wrong))) if wrong else float("inf")


def _law(
    shapes: Sequence[Dims], joules: Vector, times_us: Vector, encoder: Encoder
) -> Callable[[Sequence[Dims], Vector], Vector]:
    """The five prices; fitted to the relative error, like those of time."""
    from scipy.optimize import nnls

    def terms(asked: Sequence[Dims], times: Vector) -> Matrix:
        rows = []
        for shape, time in zip(asked, times, strict=True):
            demand = encoder.demands(shape)
            padding = demand.operations * (1.0 / max(demand.fill) - 1.0)
            rows.append([1.0, time, demand.operations, padding, demand.moved_bytes])
        return np.array(rows, dtype=np.float64)

    matrix = terms(shapes, times_us) / joules[:, None]
    scale = np.maximum(matrix.max(axis=0), 1e-300)
    prices, _ = nnls(matrix / scale, np.ones(len(shapes)))
    per_term = prices / scale
    return lambda asked, times: np.maximum(terms(asked, times) @ per_term, 1e-12)


def _smooth_power(
    shapes: Sequence[Dims], joules: Vector, times_us: Vector, encoder: Encoder, seed: int
) -> Callable[[Sequence[Dims], Vector], Vector]:
    """Watts as a smooth function of what a kernel does per second, of how long it takes, of how many units have work, and of
    alignment or of what else is known.

    Trees want thousands of shapes to draw a slope, and energy is known at some hundred.
    """
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel
    from sklearn.preprocessing import StandardScaler

    def matrix(asked: Sequence[Dims], times: Vector) -> Matrix:
        rows = []
        for shape, time in zip(asked, times, strict=True):
            demand = encoder.demands(shape)
            work = [np.log(demand.operations / time), np.log(demand.moved_bytes / time), np.log(time)]
            busy = np.log(min(demand.tiles[0] / encoder.machine.units, _SATURATED_WAVES))
            rest = (busy, min(tier(size) for size in demand.contiguous))
            rows.append([*work, *(encoder.told(shape).few if encoder.told else rest)])
        return np.array(rows, dtype=np.float64)

    known = matrix(shapes, times_us)
    scaler = StandardScaler().fit(known)
    kernel = ConstantKernel() * Matern(np.full(known.shape[1], 2.0), (0.3, 100.0), nu=2.5) + WhiteKernel(
        0.01, (1e-5, 1.0)
    )
    process = GaussianProcessRegressor(kernel, normalize_y=True, random_state=seed)
    with warnings.catch_warnings():
        # A length at its bound says that a feature does not matter, which is an answer.
        warnings.simplefilter("ignore")
        process.fit(scaler.transform(known), np.log(joules / times_us))
    return lambda asked, times: np.exp(process.predict(scaler.transform(matrix(asked, times)))) * times


def _small_boosting(seed: int) -> Any:
    from sklearn.ensemble import HistGradientBoostingRegressor

    # Energy is measured at some hundred shapes, a second each, where times are known at thousands.
    return HistGradientBoostingRegressor(
        learning_rate=0.05,
        max_iter=150,
        max_leaf_nodes=8,
        min_samples_leaf=6,
        l2_regularization=1.0,
        early_stopping=False,
        random_state=seed,
    )
