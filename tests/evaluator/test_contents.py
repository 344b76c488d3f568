"""Contents are fresh, legal, and can be made again by the referee alone."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from evaluator.content import distributions
from evaluator.content.pools import TensorInput
from evaluator.content.weights import redraw
from evaluator.input_structure import Structure
from evaluator.referee.sides.shape_inputs import PlainInput, ShapeInputs, StateEntry
from evaluator.roles import chain
from evaluator.roles.frames import TensorMeta


def _normal(shape: tuple[int, int] = (40, 50)) -> TensorInput:
    generator = np.random.default_rng(2)
    draws = [generator.normal(size=shape[0] * shape[1]).astype(np.float32) for _ in range(3)]
    return TensorInput(TensorMeta("float32", shape, (shape[1], 1)), draws)


@pytest.mark.parametrize("compiled", [True, False])
def test_contents_differ_from_call_to_call_and_can_be_rebuilt(tmp_path: Path, compiled: bool) -> None:
    tensor = _normal()
    seen = set()
    drawn = tensor.draw_mixed(50, np.random.default_rng())
    targets = np.zeros((50, 2016), dtype=np.float32)
    library = chain.load(chain.build(tmp_path) if compiled else None)
    tensor.write_all(library, targets.ctypes.data, 2016 * 4, drawn)
    for index, target in enumerate(targets):
        assert np.array_equal(tensor.rebuild_mixed(library, drawn, index), target[:2000])
        assert np.array_equal(tensor.rebuild_mixed(chain.NumpyChain(), drawn, index), target[:2000])
        assert not target[2000:].any()
        seen.add(target.tobytes())
    assert len(seen) == 50
    assert (drawn.offsets % 50 != 0).all()


def test_a_part_of_a_content_does_not_tell_the_rest(tmp_path: Path) -> None:
    """What is mixed into a window comes in chunks of 32 bytes, each chosen by a bit of its own; the last one may be shorter."""
    tensor = _normal((41, 49))
    library = chain.load(chain.build(tmp_path))
    drawn = tensor.draw_mixed(40, np.random.default_rng())
    of_the_first = []
    for index in range(40):
        content = tensor.rebuild_mixed(library, drawn, index)
        window = tensor.rebuild(int(drawn.draws[index]), int(drawn.offsets[index]))
        assert np.isin(content, np.concatenate(tensor.draws)).all()
        same = content == window
        for at in range(0, same.size, 8):
            assert same[at : at + 8].all() or not same[at : at + 8].any()
        of_the_first.append(same[::8])
    assert 0.45 < np.mean(of_the_first) < 0.55
    # Neighbors have nothing to do with each other.
    assert 0.45 < np.mean([first[1:] == first[:-1] for first in of_the_first]) < 0.55


@pytest.mark.parametrize("domain", ["", "non_negative", "positive", "as_drawn"])
def test_a_domain_is_what_the_task_declares_and_not_what_it_draws(domain: str) -> None:
    generator = np.random.default_rng(2)
    draws = [generator.uniform(0.1, 1.0, 600).astype(np.float32) for _ in range(3)]
    tensor = TensorInput(TensorMeta("float32", (20, 30), (30, 1)), draws, structure=Structure(domain=domain))
    seen = {name: distributions.draw(name, tensor, signs=True) for name in distributions.names([tensor])}
    assert seen["task"].min() >= 0.1 and seen["task"].max() <= 1.0
    if domain == "as_drawn":
        assert set(seen) == {"task"}
        assert any(np.array_equal(seen["task"], draw) for draw in draws)
        return
    assert max(content.max() for content in seen.values()) > 4.0
    lowest = min(content.min() for content in seen.values())
    assert lowest > 0.0 if domain == "positive" else lowest >= 0.0 if domain else lowest < -1.0
    for name in distributions.names([tensor]):
        assert distributions.draw(name, tensor).min() >= 0.0, name


def test_sorted_indices_and_masks_are_never_rolled() -> None:
    offsets = TensorInput(TensorMeta("int64", (100,), (1,)), [np.arange(100)] * 3)
    mask = TensorInput(TensorMeta("bool", (10, 10), (10, 1)), [np.tri(10, dtype=bool).reshape(-1)] * 3)
    assert not offsets.rollable
    assert not mask.rollable


def test_distributions_stress_signed_inputs() -> None:
    tensor = _normal()
    names = distributions.names([tensor])
    assert {"constant_rows", "large_mean", "wide_range", "small_integers"} < set(names)
    target = distributions.draw("constant_rows", tensor)
    assert (np.ptp(target.reshape(40, 50), axis=1) == 0).all()
    target = distributions.draw("small_integers", tensor)
    assert np.array_equal(target, np.rint(target))
    target = distributions.draw("large_mean", tensor)
    assert abs(target.mean()) > 30 * target.std()


def test_weights_are_redrawn_but_tables_are_kept() -> None:
    ones = np.ones(64, dtype=np.float32)
    weight = redraw("norm.weight", ones, "float32", parameter=True)
    assert weight.std() > 0.1
    assert (redraw("bn.running_var", ones, "float32", parameter=False) > 0).all()
    assert np.array_equal(redraw("cos_table", ones, "float32", parameter=False), ones)
    indices = np.arange(5)
    assert redraw("index", indices, "int64", parameter=False) is indices


@pytest.mark.parametrize("name", ["constant_rows", "large_mean", "wide_range", "small_integers", "scaled"])
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_a_device_makes_the_same_of_the_same_draws(name: str, dtype: str) -> None:
    torch = pytest.importorskip("torch")
    generator = np.random.default_rng(3)
    rows = generator.normal(size=(6, 8))
    if dtype == "complex64":
        rows = rows + 1j * generator.normal(size=(6, 8))
    numbers = {shape: generator.normal(size=shape) for shape in ((1, 1), (6, 1), (6, 8))}
    tensor = TensorInput(TensorMeta(dtype, (6, 8), (8, 1)), [np.ones(48, dtype)])

    class Given:
        def __init__(self, convert: Any) -> None:
            self._convert = convert

        def uniform(self, low: float, high: float, shape: tuple[int, ...]) -> Any:
            return self._convert(np.clip(numbers[shape], low, high))

        def normal(self, shape: tuple[int, ...]) -> Any:
            return self._convert(numbers[shape])

    on_host = distributions.transformed(name, rows, tensor, Given(np.asarray))
    on_device = distributions.transformed(name, torch.from_numpy(rows), tensor, Given(torch.from_numpy))
    tolerance = 0.1 if name == "large_mean" else 1e-12  # numpy and torch divide by n and by n - 1
    assert np.allclose(on_host, on_device.numpy(), rtol=tolerance, atol=1e-12)


def test_contents_of_a_device_can_be_had_on_the_host(tmp_path: Path) -> None:
    """For a process that compiles for a GPU and has none: of a large tensor there is a part that is used again and again."""
    torch = pytest.importorskip("torch")
    values = np.random.default_rng(4).normal(size=500).astype(np.float32)
    meta = TensorMeta("float32", (40, 50), (50, 1))
    of_device = TensorInput(meta, [torch.from_numpy(values.copy()).view(torch.uint8)] * 2)
    tensor = of_device.on_host()
    assert tensor.on_host() is tensor and not tensor.on_device
    assert np.array_equal(tensor.draws[0], np.tile(values, 4))
    drawn = tensor.draw_mixed(1, np.random.default_rng())
    assert set(tensor.rebuild_mixed(chain.load(chain.build(tmp_path)), drawn, 0)) <= set(values)
    weights = StateEntry("w", meta, torch.from_numpy(np.tile(values, 4)).view(torch.uint8))
    found = ShapeInputs([], [of_device, PlainInput(3, (of_device,))], [weights]).on_host()
    assert [one.on_device for one in found.given] == [False, False]
    assert np.array_equal(found.state[0].values, np.tile(values, 4))


@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("found", [(), ("zero_pattern",)])
def test_one_element_in_64_changes_and_all_else_stays(
    found: tuple[str, ...], dtype: str, on_device: bool
) -> None:
    generator = np.random.default_rng(5)
    values = generator.normal(size=2003).astype(dtype)
    if found:
        values[generator.random(2003) < 0.3] = 0.0
    flat = torch.from_numpy(values.view(np.uint8).copy()) if on_device else values
    meta = TensorMeta(dtype, (2003,), (1,))
    tensor = TensorInput(meta, [flat], structure=Structure(found))
    assert tensor.rollable and tensor.on_device == on_device
    seen, reached = [], []
    for _ in range(20):
        changed = tensor.slightly_changed(flat)
        seen.append(changed.numpy().view(dtype) if on_device else changed)
        assert seen[-1].shape == values.shape and np.isin(seen[-1], values).all()
        assert not (seen[-1] != values)[values == 0].any()
        differs = np.flatnonzero((seen[-1] != values)[values != 0])
        blocks = -(-int((values != 0).sum()) // 64)
        assert 0.7 * blocks < len(differs) <= blocks
        reached.append(len(set(differs // 64)) / blocks)
    # Some neighbors stay as they are: a key of few would else always see a change.
    assert 0.5 < np.mean(reached) < 0.75
    assert (flat.numpy().view(dtype) if on_device else flat).tobytes() == values.tobytes()
    assert np.mean([a != b for a, b in pairwise(seen)]) > 1 / 70
