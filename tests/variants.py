"""Which of many parameters of one test run every time: some of each kind, and all of them in `make test-all`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def some(parameters: Iterable[Any], every: int = 2) -> list[Any]:
    """The parameters of a test; the first of each `every` runs always, the others are slow tests.

    A tuple stands for several arguments, as in `pytest.mark.parametrize`.
    """
    return [_slow(parameter) if place % every else parameter for place, parameter in enumerate(parameters)]


def _slow(parameter: Any) -> Any:
    if isinstance(parameter, type(pytest.param())):
        return parameter._replace(marks=(*parameter.marks, pytest.mark.slow))
    values = parameter if isinstance(parameter, tuple) else (parameter,)
    return pytest.param(*values, marks=pytest.mark.slow)
