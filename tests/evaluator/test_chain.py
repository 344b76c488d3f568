"""The chain between timed calls: the C code, its Python twin and what each depends on."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest

from evaluator.roles import chain


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


def test_a_missing_compiler_is_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert chain.build(tmp_path) is None
    assert isinstance(chain.load(None), chain.NumpyChain)
