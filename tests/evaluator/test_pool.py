"""The allocator behind torch's pool of exchange memory; it only counts addresses, so any will do."""

from __future__ import annotations

import ctypes
import random
from pathlib import Path

import pytest

from evaluator.roles import chain

_START, _BYTES = 1 << 40, 64 << 20


@pytest.fixture
def pool(tmp_path: Path) -> ctypes.CDLL:
    library = chain.build(tmp_path, chain.SOURCE.with_name("pool.c"))
    if library is None:
        pytest.skip("no C compiler on PATH")
    loaded = ctypes.CDLL(library)
    loaded.kw_pool_init.argtypes = [ctypes.c_uint64, ctypes.c_uint64]
    loaded.kw_pool_alloc.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
    loaded.kw_pool_alloc.restype = ctypes.c_void_p
    loaded.kw_pool_free.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
    loaded.kw_pool_free.restype = None
    loaded.kw_pool_overflows.restype = ctypes.c_long
    loaded.kw_pool_init(_START, _BYTES)
    return loaded


@pytest.mark.parametrize("seed", range(5))
def test_pieces_never_overlap_and_all_of_it_comes_back(pool: ctypes.CDLL, seed: int) -> None:
    draws = random.Random(seed)
    held: dict[int, int] = {}
    for _ in range(3000):
        if held and draws.random() < 0.5:
            address = draws.choice(list(held))
            pool.kw_pool_free(address, held.pop(address), 0, None)
            continue
        length = draws.randrange(1, 3 << 20)
        before = pool.kw_pool_overflows()
        address = pool.kw_pool_alloc(length, 0, None)
        if pool.kw_pool_overflows() > before:
            continue
        assert address % 512 == 0 and address >= _START and address + length <= _START + _BYTES
        assert all(address + length <= at or at + size <= address for at, size in held.items())
        held[address] = length
    for address, length in held.items():
        pool.kw_pool_free(address, length, 0, None)
    assert pool.kw_pool_alloc(_BYTES, 0, None) == _START


def test_a_full_pool_counts_an_overflow_and_serves_again_what_was_given_back(pool: ctypes.CDLL) -> None:
    half = _BYTES // 2
    first, second = pool.kw_pool_alloc(half, 0, None), pool.kw_pool_alloc(half, 0, None)
    assert pool.kw_pool_overflows() == 0
    pool.kw_pool_alloc(512, 0, None)
    assert pool.kw_pool_overflows() == 1
    pool.kw_pool_free(first, half, 0, None)
    assert pool.kw_pool_alloc(half, 0, None) == first
    assert pool.kw_pool_overflows() == 1 and second == first + half
