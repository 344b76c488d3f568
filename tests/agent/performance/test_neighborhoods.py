"""No neighbor of a training shape is ever tested."""

from __future__ import annotations

import math
import random

import numpy as np

from agent.performance.neighborhoods import folds, held_out, neighborhoods


def shapes(count: int) -> list[dict[str, int]]:
    generator = random.Random(3)
    found = []
    for _ in range(count):
        rows, cols = (int(2 ** generator.uniform(4, 13)) for _ in range(2))
        found += [{"rows": rows, "cols": cols}, {"rows": rows, "cols": cols + 1}]
    return found


def test_a_run_of_neighbors_is_one_neighborhood_however_far_its_ends_are_apart() -> None:
    run = [{"rows": rows, "cols": 512} for rows in range(500, 800, 20)]
    far = [{"rows": 4000, "cols": 512}, {"rows": 500, "cols": 4096}]
    groups = neighborhoods([*run, *far])
    assert len(set(groups[: len(run)].tolist())) == 1
    assert len(set(groups.tolist())) == 3


def test_shapes_of_other_dtypes_are_no_neighbors() -> None:
    groups = neighborhoods([{"rows": 512, "dtype": "float32"}, {"rows": 512, "dtype": "bfloat16"}])
    assert groups[0] != groups[1]


def test_no_training_shape_is_near_a_held_out_one() -> None:
    every = shapes(150)
    groups = neighborhoods(every)
    out = held_out(groups, 0.25, seed=1)
    assert 0.25 <= out.mean() < 0.35
    assert not set(groups[out].tolist()) & set(groups[~out].tolist())
    for tested in (one for one, is_out in zip(every, out, strict=True) if is_out):
        for seen in (one for one, is_out in zip(every, out, strict=True) if not is_out):
            gaps = [
                abs(math.log2(tested[name] / seen[name]))
                for name in tested
                if abs(tested[name] - seen[name]) > 8
            ]
            assert gaps and max(gaps) > 0.125


def test_folds_divide_no_neighborhood_and_miss_no_shape() -> None:
    groups = neighborhoods(shapes(60))
    parts = list(folds(groups, 4, seed=1))
    assert (np.sum(parts, axis=0) == 1).all()
    for part in parts:
        assert not set(groups[part].tolist()) & set(groups[~part].tolist())
