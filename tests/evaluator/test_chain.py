"""The chain between timed calls: the C code, its Python twin and what each depends on."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest

from evaluator.content.pools import TensorInput
from evaluator.referee.sides.shape_inputs import ShapeInputs, StateEntry
from evaluator.roles import chain
from evaluator.roles.frames import TensorMeta


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> chain.Chain:
    library = chain.build(tmp_path_factory.mktemp("chain"))
    if library is None:
        pytest.skip("no C compiler on PATH")
    return chain.CompiledChain(library)


@pytest.mark.parametrize("length", [0, 1, 7, 32, 33, 16384, 16385, 100_003])
def test_both_digests_agree(compiled: chain.Chain, length: int) -> None:
    data = np.random.default_rng(length).integers(0, 256, max(length, 1), dtype=np.uint8)
    for state in (0, 1, (1 << 64) - 1):
        expected = chain.NumpyChain().digest(data.ctypes.data, length, state)
        assert compiled.digest(data.ctypes.data, length, state) == expected


def test_a_small_output_counts_in_every_byte(compiled: chain.Chain) -> None:
    data = np.zeros(1000, dtype=np.uint8)
    before = compiled.digest(data.ctypes.data, data.nbytes, 5)
    for place in range(0, 1000, 37):
        data[place] ^= 1
        assert compiled.digest(data.ctypes.data, data.nbytes, 5) != before
        data[place] ^= 1


def _table(target: np.ndarray, pool: np.ndarray, stride: int) -> ctypes.Array:
    table = (chain.Refresh * 1)()
    table[0].data, table[0].pool = target.ctypes.data, pool.ctypes.data
    table[0].item_bytes, table[0].count = target.itemsize, target.size
    table[0].pool_count, table[0].stride = pool.size, stride
    return table


@pytest.mark.parametrize("dtype", ["float32", "uint16", "float64"])
def test_refresh_follows_the_state_and_uses_legal_values(compiled: chain.Chain, dtype: str) -> None:
    base = np.arange(5000).astype(dtype)
    pool = (np.arange(300) + 50_000).astype(dtype)
    results = []
    for state in (11, 12):
        here, there = base.copy(), base.copy()
        table = _table(here, pool, 61)
        compiled.refresh(ctypes.addressof(table), 1, state)
        chain.NumpyChain().refresh(_table(there, pool, 61), 1, state)
        assert np.array_equal(here, there)
        changed = here != base
        assert 5000 // 61 <= changed.sum() <= 5000 // 61 + 1
        assert np.isin(here[changed], pool).all()
        results.append(here)
    assert not np.array_equal(*results)


def test_inputs_small_beside_the_weights_are_replaced_as_a_whole(compiled: chain.Chain) -> None:
    """Only tables and positions stay, and what is as large as the weights keeps most of its elements."""
    weight = StateEntry(
        "weight", TensorMeta("float32", (512, 256), (256, 1)), np.zeros(512 * 256, np.float32)
    )

    def given(rows: int) -> TensorInput:
        draws = [np.random.default_rng(seed).normal(size=rows * 256).astype(np.float32) for seed in range(3)]
        return TensorInput(TensorMeta("float32", (rows, 256), (256, 1)), draws)

    small, large = given(4), given(64)
    table = TensorInput(TensorMeta("int64", (256,), (1,)), [np.arange(256)] * 3)
    ShapeInputs([], [small, large, table], [weight]).renew_small(gpu=False)
    assert (small.refresh_stride, table.renewed) == (1, False)
    assert large.refresh_stride >= 61

    results = []
    for state in (11, 12):
        here, there = small.draws[0].copy(), small.draws[0].copy()
        table_of_one = _table(here, small.pool, 1)
        compiled.refresh(ctypes.addressof(table_of_one), 1, state)
        chain.NumpyChain().refresh(_table(there, small.pool, 1), 1, state)
        assert np.array_equal(here, there)
        assert (here != small.draws[0]).mean() > 0.99
        assert np.isin(here, small.pool).all()
        assert len(np.unique(here)) > here.size // 4
        results.append(here)
    assert (results[0] != results[1]).mean() > 0.99


def test_where_a_large_output_is_looked_at_depends_on_when_its_call_returned(compiled: chain.Chain) -> None:
    """The state after it says when, so that the referee can look at the same places."""
    data = np.random.default_rng(3).integers(0, 256, 1 << 20, dtype=np.uint8)
    states = set()
    for when in (0, 1, 2, 65535):
        digest = compiled.digest(data.ctypes.data, data.nbytes, chain.stirred(5, when))
        state = chain.marked(digest, when)
        assert chain.when_of(state) == when
        states.add(state >> chain.WHEN_BITS)
    assert len(states) == 4
    assert len({chain.now() for _ in range(100)}) > 50


def test_a_missing_compiler_is_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert chain.build(tmp_path) is None
    assert isinstance(chain.load(None), chain.NumpyChain)
