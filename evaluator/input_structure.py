"""Structure that all draws of an input share, and how fresh contents keep it.

``get_inputs`` defines more than sizes: a matrix is triangular, a mask is the same in every draw, rows sum to one. A
candidate may rely on that. Every content keeps the structure that is found here:

==========  ==================================================  ====================================================
way         for                                                 contents
==========  ==================================================  ====================================================
``free``    no structure                                        windows of draws, rolled and mixed
``placed``  zeros at the same places (triangular, banded)       draws, mixed element by element
``turned``  symmetry, constant sums or norms, sorted lines      one draw, its lines permuted
``drawn``   the same in every draw, declared ``as_drawn``, or   one draw as it is
            more than one of the above
==========  ==================================================  ====================================================
"""

from __future__ import annotations

from dataclasses import dataclass

#: What a task may declare of an input, ``DOMAIN = {"x": "non_negative"}``: the kind of its values (in the range of
#: its draws, without further structure), or that it is used exactly as drawn.
DOMAINS = ("non_negative", "positive", "in_range", "as_drawn")
FREE, PLACED, TURNED, DRAWN = "free", "placed", "turned", "drawn"

CONSTANT, FEW_VALUES = "constant", "few_values"
_TRIANGULAR = ("lower_triangular", "upper_triangular", "diagonal", "zero_pattern")
_SQUARE = ("symmetric", "antisymmetric", "positive_definite")
#: Followed by the dimension along which they hold.
_LINES = ("sum", "norm", "sorted", "repeated")
_IN_WORDS = {
    CONSTANT: "the same in every draw",
    FEW_VALUES: "few distinct values",
    "zero_pattern": "zeros at the same places",
    "sum": "the same sum along dimension",
    "norm": "the same norm along dimension",
    "sorted": "sorted along dimension",
    "repeated": "one value along all of dimension",
}


@dataclass(frozen=True)
class Structure:
    """The structure of one input.

    Attributes:
        found: words of this module; ``sum``, ``norm``, ``sorted`` and ``repeated`` with a dimension after a colon.
        domain: one of :data:`DOMAINS`, empty if the task declares nothing.
    """

    found: tuple[str, ...] = ()
    domain: str = ""

    @property
    def way(self) -> str:
        """How contents are drawn anew, see the table above."""
        if self.domain == "as_drawn" or CONSTANT in self.found:
            return DRAWN
        kept = [word for word in self.found if word != FEW_VALUES]
        if "diagonal" in kept:
            kept = [word for word in kept if word not in _SQUARE]
        placed = [word for word in kept if word in _TRIANGULAR]
        if placed and len(kept) > len(placed):
            return DRAWN
        return PLACED if placed else TURNED if kept else FREE

    def turns(self, dimensions: int) -> list[list[int]]:
        """Groups of dimensions whose lines may be permuted, the same way within a group."""
        fixed = {_line(word)[1] for word in self.found if _line(word)[0] == "sorted"}
        groups = [[at] for at in range(dimensions) if at not in fixed]
        if not any(word in _SQUARE for word in self.found):
            return groups
        pair = [dimensions - 2, dimensions - 1]
        return [group for group in groups if group[0] not in pair] + ([] if fixed & set(pair) else [pair])

    @property
    def words(self) -> str:
        """In words; empty if nothing is known."""
        parts = []
        for word in self.found:
            kind, dimension = _line(word)
            name = _IN_WORDS.get(kind, kind.replace("_", " "))
            parts.append(f"{name} {dimension}" if kind in _LINES else name)
        if self.domain:
            parts.append(f"declared {self.domain}")
        return ", ".join(parts)


def parse(found: object, domain: object, dimensions: int) -> Structure:
    """Reads what a reference's process reports of an input.

    Raises:
        ValueError: it is none of the words above.
    """
    if not isinstance(found, list) or not all(isinstance(word, str) for word in found):
        raise ValueError("a structure must be a list of words")
    for word in found:
        kind, dimension = _line(word)
        known = word in (CONSTANT, FEW_VALUES, *_TRIANGULAR, *_SQUARE)
        if not known and (kind not in _LINES or not 0 <= dimension < dimensions):
            raise ValueError(f"{word!r:.60} is not a structure")
    if domain not in ("", *DOMAINS):
        raise ValueError(f"{domain!r:.60} is not a domain")
    return Structure(tuple(found), str(domain))


def _line(word: str) -> tuple[str, int]:
    """A word and its dimension, -1 without one."""
    kind, _, dimension = word.partition(":")
    return kind, int(dimension) if dimension.isdigit() else -1
