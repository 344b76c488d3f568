"""Sources of requests are parsed in threads."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from services.jobs.parsing import parsed


@pytest.fixture
def threads_change_in_collections() -> Iterator[None]:
    """As finalizers may have it: while a tree is built, another thread goes on."""
    threshold = gc.get_threshold()

    def change(*_: object) -> None:
        time.sleep(0)

    gc.callbacks.append(change)
    gc.set_threshold(50)
    yield
    gc.set_threshold(*threshold)
    gc.callbacks.remove(change)


@pytest.mark.usefixtures("threads_change_in_collections")
def test_threads_parse_one_after_the_other() -> None:
    """CPython 3.11 raises SystemError otherwise."""
    source = "x = 1\n" + "def f(a, b):\n    return [a + b * (c - 1) for c in range(10)]\n" * 60
    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(lambda _: parsed(source) is not None, range(80)))
