"""Describes where and how a result is wrong, with the mistake that usually causes the pattern.

Reads only the `places` of a finding (`evaluator.oracle.places`). A model that reads "the last 24 of 1000 columns" checks its
mask; one that reads "error 3.1 times the bound" guesses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evaluator.verdict import Verdict

_SHARES = {
    "all": "Every element is wrong",
    "most": "Most elements are wrong",
    "some": "A part of the elements is wrong",
    "few": "Very few elements are wrong",
}
_PATTERNS = {
    "nan": (
        "they are NaN where they should not be",
        "an overflow (exp without subtracting the maximum), 0/0, or memory that was never written",
    ),
    "zero": ("they are zero", "they were never written, or a mask loaded 0 where data is"),
    "negated": ("their sign is wrong", "a subtraction the wrong way round, or a lost minus"),
    "shifted": ("they differ from the right ones by one constant", "a bias or mean that is left out or added twice"),
    "next_column": ("each holds what belongs one column to the left", "an index that is off by one"),
    "previous_column": ("each holds what belongs one column to the right", "an index that is off by one"),
    "next_row": ("each holds what belongs one row up", "a row index that is off by one"),
    "previous_row": ("each holds what belongs one row down", "a row index that is off by one"),
    "transposed": ("they are the transpose of what is right", "row and column strides that are swapped"),
    "reordered": ("they are the right values in another order", "strides or a layout that are mixed up"),
}  # fmt: skip


def explained(verdict: Verdict) -> list[str]:
    """Sentences about the wrong results of a verdict; empty if no finding has places."""
    found: list[str] = []
    for finding in verdict.findings:
        if finding.places:
            found += [sentence for sentence in sentences(finding.places) if sentence not in found]
    return found


def sentences(places: Mapping[str, Any]) -> list[str]:
    """Sentences about one finding's places: where, how, and the likely cause."""
    where = [words for name in ("row", "column") if (words := _line(name, places))]
    share = _SHARES.get(str(places.get("share")), "Elements are wrong")
    told = [f"{share}{': ' + ' and '.join(where) if where else ''}."]
    if _tail(places):
        told.append("Likely cause: the last, incomplete tile (its mask, or a loop that rounds down).")
    elif "every" in (places.get("rows"), places.get("columns")):
        told.append("Likely cause: a stride or a vector width; one lane of each group goes wrong.")
    elif "first" in (places.get("rows"), places.get("columns")):
        told.append("Likely cause: an initial value, or a loop that begins at the wrong place.")
    elif "one" in (places.get("rows"), places.get("columns")):
        told.append(
            "Likely cause: a special case of the data there (all values alike, very large, NaN), not an index."
        )
    pattern = str(places.get("pattern") or "")
    if pattern == "scaled":
        told.append(
            f"The wrong values are the right ones times about {places.get('factor')}: a factor, a divisor (n against n - 1, "
            "a padded length) or a scale that is applied twice or not at all."
        )
    elif pattern in _PATTERNS:
        looks, cause = _PATTERNS[pattern]
        told.append(f"The wrong values: {looks}. Likely cause: {cause}.")
    elif places.get("share") == "all" and not _tail(places):
        told.append(
            "No simple pattern: check the formula itself, the order of operations and which weights are used."
        )
    return told


def _tail(places: Mapping[str, Any]) -> bool:
    return any(places.get(f"{name}s") in ("tail", "last") for name in ("row", "column"))


def _line(name: str, places: Mapping[str, Any]) -> str:
    """The affected rows (or columns), in words; empty if all are affected."""
    key = f"{name}s"
    kind, count = places.get(key), places.get(f"{name}_count")
    tile = places.get(f"{name}_tile")
    match kind:
        case "tail":
            words = f"only the last {places.get(f'tail_{key}')} of {count} {key}"
            return words + (f" (what a tile of {tile} leaves over)" if tile else "")
        case "last":
            return f"only the last of {count} {key}"
        case "head":
            return f"only the first {places.get(f'head_{key}')} of {count} {key}"
        case "first":
            return f"only the first of {count} {key}"
        case "one":
            return f"only one of {count} {key}, neither the first nor the last"
        case "every":
            return f"every {places.get(f'{name}_stride')}th of {count} {key}"
        case "scattered":
            return f"{places.get(f'bad_{key}')} of {count} {key}, scattered"
    return ""
