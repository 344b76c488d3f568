"""What all draws of an input share is found, and every content keeps it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from evaluator import input_structure as structure
from evaluator.content import distributions
from evaluator.content.pools import TensorInput
from evaluator.input_structure import Structure, parse
from evaluator.roles import chain
from evaluator.roles.frames import TensorMeta
from evaluator.roles.structures import find

_MASK = torch.full((8, 8), torch.finfo(torch.float32).min).triu(1)


def _positive_definite() -> torch.Tensor:
    half = torch.randn(12, 12)
    return half @ half.mT + torch.eye(12)


def _one_hot() -> torch.Tensor:
    return torch.nn.functional.one_hot(torch.randint(0, 10, (32,)), 10).float()


KINDS: dict[str, tuple[Callable[[], torch.Tensor], list[str]]] = {
    "normal": (lambda: torch.randn(40, 50), []),
    "uniform": (lambda: torch.rand(40, 50), []),
    "rectified": (lambda: torch.relu(torch.randn(40, 50)), []),
    "bfloat16": (lambda: torch.rand(64, 512).bfloat16(), []),
    "one row": (lambda: torch.rand(1, 4096), []),
    "vector": (lambda: torch.randn(3000), []),
    "flags": (lambda: (torch.rand(40, 50) < 0.1).float(), ["few_values"]),
    # so many that the sums of three draws agree by chance once in a hundred thousand times
    "signs": (lambda: torch.randint(0, 2, (1 << 15,)).float() * 2 - 1, ["few_values", "norm:0"]),
    "lower": (lambda: torch.tril(torch.rand(16, 16)), ["lower_triangular"]),
    "upper of many": (lambda: torch.triu(torch.randn(3, 16, 20)), ["upper_triangular"]),
    "strictly lower": (lambda: torch.tril(torch.rand(16, 16), -1), ["lower_triangular"]),
    "diagonal": (lambda: torch.diag(torch.randn(16)), ["diagonal", "symmetric"]),
    "banded": (
        lambda: torch.randn(16, 16) * (torch.rand(16, 16, generator=_seeded()) < 0.5),
        ["zero_pattern"],
    ),
    "symmetric": (lambda: (lambda a: a + a.mT)(torch.randn(4, 9, 9)), ["symmetric"]),
    "antisymmetric": (lambda: (lambda a: a - a.mT)(torch.randn(9, 9)), ["diagonal"]),
    "positive definite": (_positive_definite, ["symmetric", "positive_definite"]),
    "one-hot": (_one_hot, ["few_values", "sum:1", "norm:1"]),
    "probabilities": (lambda: torch.softmax(torch.randn(8, 30), -1), ["sum:1"]),
    "half probabilities": (lambda: torch.softmax(torch.randn(8, 30), -1).half(), ["sum:1"]),
    "channels": (lambda: torch.softmax(torch.randn(2, 5, 7, 7), 1), ["sum:1"]),
    "normalized": (lambda: torch.nn.functional.normalize(torch.randn(8, 30), dim=-1), ["norm:1"]),
    "centered": (lambda: (lambda a: a - a.mean(-1, keepdim=True))(torch.randn(8, 300)), ["sum:1"]),
    "sorted": (lambda: torch.randn(8, 30).sort(-1).values, ["sorted:1"]),
    "falling": (lambda: torch.rand(30, 4).sort(0, descending=True).values, ["sorted:0"]),
    "mask": (lambda: _MASK, ["constant"]),
    "expanded mask": (lambda: _MASK.expand(2, 1, 8, 8), ["constant"]),
    "infinite": (lambda: torch.randn(8, 8).masked_fill(torch.rand(8, 8) < 0.2, -torch.inf), []),
    "integers": (lambda: torch.randint(0, 9, (30,)), []),
}


def _seeded() -> torch.Generator:
    return torch.Generator().manual_seed(3)


@pytest.mark.parametrize("kind", KINDS)
def test_structure_is_found(kind: str) -> None:
    make, wanted = KINDS[kind]
    if kind == "antisymmetric":  # its zeros are the diagonal's, which says nothing of the rest
        wanted = ["zero_pattern", "antisymmetric"]
    for _ in range(20):
        assert find([make() for _ in range(3)], seeded=False) == wanted


def test_a_seed_within_get_inputs_makes_nothing_constant() -> None:
    assert find([torch.ones(4).cumsum(0)] * 3, seeded=True) == []


def _tensor(make: Callable[[], torch.Tensor]) -> TensorInput:
    drawn = [make().contiguous() for _ in range(3)]
    shape = tuple(drawn[0].shape)
    found = parse(find(drawn, seeded=False), "", len(shape))
    meta = TensorMeta("float32", shape, tuple(drawn[0].stride()))
    return TensorInput(meta, [one.numpy().reshape(-1).copy() for one in drawn], structure=found)


@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if kind not in ("bfloat16", "half probabilities", "integers")]
)
@pytest.mark.parametrize("compiled", [True, False])
def test_contents_keep_it(tmp_path: Path, kind: str, compiled: bool) -> None:
    """Mixed ones as timed calls get them, after refreshes, and those of other distributions."""
    make, _ = KINDS[kind]
    tensor = _tensor(make)
    library = chain.load(chain.build(tmp_path) if compiled else None)
    drawn = tensor.draw_mixed(30, np.random.default_rng())
    held = np.zeros((30, tensor.size), dtype=np.float32)
    tensor.write_all(library, held.ctypes.data, tensor.size * 4, drawn)
    for index, content in enumerate(held):
        assert np.array_equal(tensor.rebuild_mixed(library, drawn, index), content)
        if tensor.rollable:
            _refresh(library, content, tensor, 12345 + index)
    shaped = [torch.from_numpy(content.reshape(tensor.meta.shape)) for content in held]
    if tensor.structure.way != structure.DRAWN and kind != "infinite":
        assert len({content.tobytes() for content in held}) > 10
    assert set(tensor.structure.found) <= set(find(shaped, seeded=False)), tensor.structure.way
    others = [distributions.draw(name, tensor, signs=True) for name in distributions.names([tensor])]
    if tensor.keeps_zeros:  # other distributions may have more of them
        zeros = [draw == 0.0 for draw in tensor.draws]
        assert all((content[zeros[0] & zeros[1] & zeros[2]] == 0.0).all() for content in others)
        assert any(content.any() for content in others)
    elif not tensor.transformable and kind != "infinite":
        found = find(
            [torch.from_numpy(content.reshape(tensor.meta.shape)) for content in [*held, *others]],
            seeded=False,
        )
        assert set(tensor.structure.found) <= set(found)


def _refresh(library: Any, content: np.ndarray, tensor: TensorInput, state: int) -> None:
    table = (chain.Refresh * 1)()
    entry = table[0]
    entry.data, entry.pool = content.ctypes.data, tensor.pool.ctypes.data
    entry.item_bytes, entry.count = content.itemsize, content.size
    entry.pool_count, entry.stride = tensor.pool.size, tensor.refresh_stride
    entry.keeps_zeros = tensor.keeps_zeros
    before = content.copy()
    library.refresh(chain.ctypes.addressof(table), 1, state)
    other = before.copy()
    entry.data = other.ctypes.data
    chain.NumpyChain().refresh(chain.ctypes.addressof(table), 1, state)
    assert np.array_equal(content, other)


def test_inputs_that_stay_as_drawn_come_from_one_draw() -> None:
    pair = [
        TensorInput(
            TensorMeta("float32", (4,), (1,)),
            [np.full(4, i, np.float32) + np.arange(4, dtype=np.float32) for i in range(3)],
            structure=Structure(domain="as_drawn"),
        )
        for _ in range(2)
    ]
    common = np.random.default_rng().integers(0, 1 << 30, 50)
    one, other = (tensor.draw(50, np.random.default_rng(), common)[0] for tensor in pair)
    assert (one == other).all() and len(set(one)) == 3


@pytest.mark.parametrize("found", [["lower"], ["sum:2"], ["sum"], "constant", [3]])
def test_what_a_process_says_is_checked(found: Any) -> None:
    with pytest.raises(ValueError, match="structure"):
        parse(found, "", 2)
    with pytest.raises(ValueError, match="domain"):
        parse([], "negative", 2)
