"""Models of a positive quantity over shapes: microseconds per call, or watts.

All learn the logarithm, so that errors are relative. ``analytic`` is the cost model alone; ``boosted_residual`` is boosted
trees on what the cost model leaves over, which keeps its law where no shape was measured and learns the saw-tooth.

A kind is a function from shapes and times to a :class:`Model`; adding one means adding it to :data:`KINDS`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from agent.performance import analytic
from agent.performance.demand import Dims
from agent.performance.features import Encoder, Matrix

Vector = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Model:
    """A fitted model.

    Attributes:
        kind: one of :data:`KINDS`.
        predict: from shapes to the quantity at each.
    """

    kind: str
    predict: Callable[[Sequence[Dims]], Vector]


Fit = Callable[[Sequence[Dims], Vector, Encoder, int], Callable[[Sequence[Dims]], Vector]]


def fit(kind: str, shapes: Sequence[Dims], values: Vector, encoder: Encoder, seed: int = 0) -> Model:
    """A model of what was measured.

    Args:
        kind: one of :data:`KINDS`.
        shapes: where it was measured.
        values: what, above 0.
        encoder: features of the shapes.
        seed: of what is random in the fit.

    Raises:
        ValueError: a value that has no logarithm.
    """
    if not len(values) or not (np.isfinite(values) & (values > 0)).all():
        raise ValueError("a model needs measured values above 0 at one shape or more")
    return Model(kind, KINDS[kind](shapes, values, encoder, seed))


def _learned(make: Callable[[int, int], Any]) -> Fit:
    """A regressor of scikit-learn on the logarithm of the quantity."""

    def fit_log(
        shapes: Sequence[Dims], values: Vector, encoder: Encoder, seed: int
    ) -> Callable[[Sequence[Dims]], Vector]:
        regressor = make(seed, len(values))
        regressor.fit(encoder.matrix(shapes), np.log(values))
        return lambda asked: np.exp(np.asarray(regressor.predict(encoder.matrix(asked))))

    return fit_log


def _analytic(
    shapes: Sequence[Dims], values: Vector, encoder: Encoder, seed: int
) -> Callable[[Sequence[Dims]], Vector]:
    model = analytic.fit([encoder.demands(shape) for shape in shapes], values, encoder.machine)
    return lambda asked: np.maximum(model.predict_us([encoder.demands(shape) for shape in asked]), 1e-9)


def _boosted_residual(
    shapes: Sequence[Dims], values: Vector, encoder: Encoder, seed: int
) -> Callable[[Sequence[Dims]], Vector]:
    law = _analytic(shapes, values, encoder, seed)
    regressor = _boosting(seed, len(values))

    def matrix(asked: Sequence[Dims]) -> Matrix:
        return np.column_stack([encoder.matrix(asked), np.log(law(asked))])

    regressor.fit(matrix(shapes), np.log(values / law(shapes)))
    return lambda asked: law(asked) * np.exp(np.asarray(regressor.predict(matrix(asked))))


def _tree(seed: int, count: int) -> Any:
    from sklearn.tree import DecisionTreeRegressor

    return DecisionTreeRegressor(min_samples_leaf=2, random_state=seed)


def _forest(seed: int, count: int) -> Any:
    from sklearn.ensemble import RandomForestRegressor

    return RandomForestRegressor(n_estimators=200, max_features=0.5, random_state=seed)


def _boosting(seed: int, count: int) -> Any:
    from sklearn.ensemble import HistGradientBoostingRegressor

    # Small steps and small leaves: some thousand shapes, a saw-tooth, and noise of a percent or two.
    return HistGradientBoostingRegressor(
        learning_rate=0.05,
        max_iter=min(max(count, 100), 600),
        max_leaf_nodes=24,
        min_samples_leaf=4,
        l2_regularization=1.0,
        early_stopping=False,
        random_state=seed,
    )


KINDS: dict[str, Fit] = {
    "tree": _learned(_tree),
    "forest": _learned(_forest),
    "boosted": _learned(_boosting),
    "analytic": _analytic,
    "boosted_residual": _boosted_residual,
}
