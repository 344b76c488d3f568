"""Where an output is wrong and what its wrong values look like, roughly, as a hint for repairing it.

"The last 24 of 1000 columns hold zeros" points to *the mask of the last tile*; a largest error of 3.1 does not.
Only places and patterns are reported, as few as needed to name a cause: no input values, no further expected
values, nothing about other contents. Patterns are only searched among wrong elements, so they never change what is
accepted.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from evaluator.oracle.arrays import Array

#: Larger outputs are skipped: on the host this takes a second per 10 million elements.
_MOST_ELEMENTS = 1 << 24
_ALL, _MOST, _FEW = 0.999, 0.5, 0.01
_AGREEING = 0.98
_TILES = (512, 256, 128, 64, 32, 16, 8, 4)

Places = dict[str, str | int | float]


def places(wrong: Array, got: Array, exact: Array) -> Places:
    """Places and pattern of wrong elements.

    Args:
        wrong: mask over (rows, columns), columns being the last dimension; at least one is set.
        got: what was returned, of the same form, float64, complex128 or an exact dtype.
        exact: what was expected.

    Returns:
        `share` ("all", "most", "some", "few"); `rows` and `columns` (`all`, `one`, `first`, `last`, `tail`,
        `head`, `every`, `scattered`) with `row_count`, `column_count`, `tail_columns`, `column_stride`, ... if
        they add information; `pattern` (see `_pattern`) with `factor` for scaled values. Empty for outputs that
        are too large to check.
    """
    if wrong.shape[0] * wrong.shape[1] > _MOST_ELEMENTS:
        return {}
    mask, mine, right = (_host(values) for values in (wrong, got, exact))
    share = float(mask.mean())
    found: Places = {
        "share": "all" if share >= _ALL else "most" if share >= _MOST else "few" if share <= _FEW else "some",
        "row_count": int(mask.shape[0]),
        "column_count": int(mask.shape[1]),
    }
    for name, axis in (("row", 1), ("column", 0)):
        found |= _line(name, mask.any(axis=axis))
    with np.errstate(all="ignore"):
        found |= _pattern(mask, mine, right)
    return found


def _host(values: Array) -> Any:
    return values if isinstance(values, np.ndarray) else values.cpu().numpy()


def _line(name: str, bad: Any) -> Places:
    """Which rows (or columns) hold wrong elements."""
    key = f"{name}s"
    size, places_ = len(bad), np.flatnonzero(bad)
    count, first, last = len(places_), int(places_[0]), int(places_[-1])
    if size == 1 or count == size:
        return {key: "all"}
    contiguous = count == last - first + 1
    if contiguous and last == size - 1:
        told: Places = {key: "last" if count == 1 else "tail", f"tail_{key}": count}
        tile = next((tile for tile in _TILES if first % tile == 0 and size - first < tile), 0)
        return told | ({f"{name}_tile": tile} if tile else {})
    if contiguous and first == 0:
        return {key: "first" if count == 1 else "head", f"head_{key}": count}
    if count == 1:
        return {key: "one"}
    steps = np.diff(places_)
    if count >= 3 and steps[0] > 1 and bool((steps == steps[0]).all()):
        return {key: "every", f"{name}_stride": int(steps[0])}
    return {key: "scattered", f"bad_{key}": count}


def _pattern(mask: Any, got: Any, exact: Any) -> Places:
    """The kind of wrong values, or nothing if it has no name.

    One of `nan`, `zero`, `negated`, `scaled`, `shifted`, `next_column`, `previous_column`, `next_row`,
    `previous_row`, `transposed`, `reordered`.
    """
    bad, right = got[mask], exact[mask]
    if bad.dtype.kind in "fc" and _mostly(np.isnan(bad) & ~np.isnan(right)):
        return {"pattern": "nan"}
    if _mostly((bad == 0) & (right != 0)):
        return {"pattern": "zero"}
    for name, moved in _moved(exact):
        there = moved[mask]
        if _close(bad, there) and not _close(right, there):
            return {"pattern": name}
    if bad.dtype.kind != "f" or len(bad) < 4:
        return {}
    finite = np.isfinite(bad) & np.isfinite(right)
    bad, right = bad[finite], right[finite]
    if len(bad) < 4:
        return {}
    if _close(bad, -right):
        return {"pattern": "negated"}
    big = np.abs(right) > 0.1 * np.abs(right).max(initial=0.0)
    if big.sum() >= 4 and float(right[big].std()) > 0:
        ratio = float(np.median(bad[big] / right[big]))
        if _close(bad, ratio * right):
            return {"pattern": "scaled", "factor": float(f"{ratio:.2g}")}
    offset = float(np.median(bad - right))
    if offset and _close(bad, right + offset):
        return {"pattern": "shifted"}
    if mask.all() and _close(np.sort(got, axis=None), np.sort(exact, axis=None)):
        return {"pattern": "reordered"}
    return {}


def _moved(exact: Any) -> list[tuple[str, Any]]:
    rows, columns = exact.shape
    found = []
    if columns > 2:
        found += [("next_column", np.roll(exact, -1, 1)), ("previous_column", np.roll(exact, 1, 1))]
    if rows > 2:
        found += [("next_row", np.roll(exact, -1, 0)), ("previous_row", np.roll(exact, 1, 0))]
    if rows == columns and rows > 1:
        found.append(("transposed", exact.T))
    return found


def _close(first: Any, second: Any) -> bool:
    if first.dtype.kind not in "fc":
        return _mostly(first == second)
    return _mostly(np.isclose(first, second, rtol=1e-3, atol=1e-6))


def _mostly(true: Any) -> bool:
    return bool(true.mean() >= _AGREEING) if true.size else False
