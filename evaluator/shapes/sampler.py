"""Draws the shapes of the four splits of a task.

Base points come from a scrambled Sobol sequence in the logarithm of every integer dimension, since uniform sampling would put
nearly every point at the large end, each on an alignment tier of its own. On a quarter of them neighbours follow (-1, +1,
+8): they show the saw-tooth of alignment and tile edges. ``adversarial`` has the named strata of
:mod:`evaluator.shapes.strata` instead, because it looks for wrong results and not for speed.

Splits lie apart (:mod:`evaluator.shapes.apart`): no ``validation`` shape is near a ``visible`` one, no ``held_out`` shape near
either, and one octave of one dimension is seen by ``held_out`` alone. Where a space has too few shapes for that, those
farthest away are taken, and :meth:`Sampler.remark` says so. ``adversarial`` shapes may be anywhere, since nothing is tuned
or chosen by their speed. Shapes of a user's own traffic are exempt, and held-out shapes stay away from them too.

Not drawn: inputs in other layouts or at misaligned addresses (they are what `get_inputs` makes; whatever else arrives at a
delivered module is sent to the reference by its guards), and more than 2^31 elements (beyond what a device's caps allow).
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Iterator, Sequence
from itertools import islice, product

from evaluator.shapes.apart import (
    SHARE,
    STEPS,
    Region,
    are_near,
    octaves_between,
    withheld_region,
)
from evaluator.shapes.drawing import Drawn, Limits, nearest, octaves
from evaluator.shapes.space import ChoiceDim, Dims, IntegerDim, Space, Value, defaults
from evaluator.shapes.strata import draw_strata

SPLITS = ("visible", "validation", "held_out", "adversarial")
#: Shapes per split. Few, because each timed one costs a compilation of every baseline for exactly this shape.
COUNTS = {"visible": 6, "validation": 4, "held_out": 6, "adversarial": 8}
_TIERS = (1, 2, 4, 8, 16, 64, 128)
_NEIGHBOURS = (-1, 1, 8)
_RUN_SHARE = 0.25
#: Of a split's shapes, so many at most are neighbours: there are few, and other sizes tell more.
_MOST_NEIGHBOURS = 1 / 3
#: Base points per wanted shape before the search ends.
_ATTEMPTS = 40
#: Proposals that are probed at once, at least: a shape more takes longer than a question more.
_ASKED = 2
#: Shapes in the withheld region that are tried until one fits.
_REGION_ATTEMPTS = 12


class Sampler:
    """The splits of one task under one set of limits; all but ``held_out`` are drawn once.

    Args:
        space: the task's dimensions.
        digest: of the task: same digest, same shapes.
        limits: of the device.
    """

    def __init__(self, space: Space, digest: str, limits: Limits) -> None:
        self.space = space
        self._digest = digest
        self.limits = limits
        self._varies = any(isinstance(dim, IntegerDim) for dim in space.values())
        self.withheld: Region | None = withheld_region(space, digest)
        self._kept: dict[str, list[Drawn]] = {}
        self._remarks: dict[str, str] = {}

    def draw(self, split: str, *, secret: str = "", exempt: Sequence[Dims] = ()) -> list[Drawn]:
        """At most :data:`COUNTS` shapes of a split.

        Args:
            split: one of SPLITS.
            secret: seed of ``held_out``, which nobody has seen; unused elsewhere.
            exempt: shapes that a user really has; ``held_out`` stays away from them, too.
        """
        if split == "held_out":
            return self._draw(split, secret, exempt)
        if split not in self._kept:
            self._kept[split] = self._draw(split, self._digest, ())
        return self._kept[split]

    def further(self, count: int) -> list[Drawn]:
        """At most so many validation shapes more, for who has several candidates to choose among; the same every time.

        Whoever uses them gives them to the held-out split as shapes to stay away from.
        """
        if not self._varies:
            return []
        visible = [drawn.dims for drawn in self.draw("visible")]
        known = [drawn.dims for drawn in self.draw("validation")]
        search = _Search(self.space, self.limits, visible, self.withheld, "validation", count)
        search.run(f"{self._digest}:further")
        return [drawn for drawn in search.chosen if drawn.dims not in known and not search.is_doubtful(drawn)]

    def remark(self, split: str) -> str:
        """Why the shapes that were drawn last for a split are not as far from the others as they should be; empty if they are."""
        return self._remarks.get(split, "")

    def _draw(self, split: str, seed: str, exempt: Sequence[Dims]) -> list[Drawn]:
        if not self._varies:
            return self._choices_only(split)
        if split == "adversarial":
            return draw_strata(self.space, seed, self.limits, COUNTS[split])
        before = {"visible": (), "validation": ("visible",), "held_out": ("visible", "validation")}[split]
        others = [drawn.dims for earlier in before for drawn in self.draw(earlier)] + list(exempt)
        search = _Search(self.space, self.limits, others, self.withheld, split)
        search.run(seed)
        self._remarks[split] = search.remark()
        return search.chosen

    def _choices_only(self, split: str) -> list[Drawn]:
        """A task without integer dimensions has one shape per combination of choices, the same in every split."""
        if split in ("validation", "held_out"):
            self._remarks[split] = f"no size of the task can vary, so {split} has the shapes of visible"
        values = [dim.values for dim in self.space.values() if isinstance(dim, ChoiceDim)]
        combinations = islice(product(*values), COUNTS[split])
        return [Drawn(dict(zip(self.space, values, strict=True)), "choices") for values in combinations]


class _Search:
    """Fills one split."""

    def __init__(
        self,
        space: Space,
        limits: Limits,
        others: list[Dims],
        withheld: Region | None,
        split: str,
        wanted: int | None = None,
    ) -> None:
        self._space = space
        self._limits = limits
        self._others = others
        self._withheld = withheld
        self._split = split
        self._wanted = wanted or COUNTS[split]
        self.chosen: list[Drawn] = []
        #: What is near another split's shape or in the withheld region.
        self._refused: list[Drawn] = []
        self._seen: set[tuple[Value, ...]] = set()

    def run(self, seed: str) -> None:
        """Draws until there are enough, with shapes that are too near where there are no others."""
        points = _Points(self._space, f"{self._split}:{seed}")
        if self._split == "visible":
            self._take(iter([(Drawn(defaults(self._space), "default"), None)]), 1)
        elif self._split == "held_out" and self._withheld is not None:
            moved = points.moved_into(self._withheld, _REGION_ATTEMPTS)
            self._take(((Drawn(dims, "withheld octave"), None) for dims in moved), 1)
            self._take_refused(1)
        self._take(self._proposals(points), self._wanted)
        self._take_refused(self._wanted)

    def _proposals(self, points: _Points) -> Iterator[tuple[Drawn, Dims | None]]:
        """Base points, and after a quarter of them their neighbours, with the base point that must be there."""
        for base in islice(points.points(), _ATTEMPTS * self._wanted):
            yield Drawn(base, "base"), None
            if points.generator.random() < _RUN_SHARE:
                yield from ((Drawn(dims, "neighbour"), base) for dims in points.run(base))

    def _take(self, proposals: Iterator[tuple[Drawn, Dims | None]], most: int) -> None:
        """Adds shapes that fit and are far from the others', until there are so many."""
        waiting: list[tuple[Drawn, Dims | None]] = []
        for drawn, base in proposals:
            key = tuple(drawn.dims.values())
            if key in self._seen:
                continue
            self._seen.add(key)
            if self._is_withheld(drawn.dims) or self._is_near(drawn.dims):
                self._refused.append(drawn)
                continue
            waiting.append((drawn, base))
            if len(waiting) >= max(most - len(self.chosen), _ASKED):
                self._probe(waiting, most)
                waiting = []
            if len(self.chosen) >= most:
                return
        self._probe(waiting, most)

    def _probe(self, proposals: list[tuple[Drawn, Dims | None]], most: int) -> None:
        fits = self._limits.fit([drawn.dims for drawn, _ in proposals]) if proposals else []
        for (drawn, base), is_fitting in zip(proposals, fits, strict=True):
            if is_fitting and len(self.chosen) < most and (base is None or self._has_room_beside(base)):
                self.chosen.append(drawn)

    def _has_room_beside(self, base: Dims) -> bool:
        """Whether the base point is there and there are not too many neighbours yet."""
        neighbours = sum(drawn.stratum == "neighbour" for drawn in self.chosen)
        return neighbours < int(self._wanted * _MOST_NEIGHBOURS) and any(
            drawn.dims == base for drawn in self.chosen
        )

    def is_doubtful(self, drawn: Drawn) -> bool:
        """Whether it was taken for want of shapes that lie apart."""
        return self._is_withheld(drawn.dims) or self._is_near(drawn.dims)

    def _is_withheld(self, dims: Dims) -> bool:
        return self._split != "held_out" and self._withheld is not None and self._withheld.holds(dims)

    def _is_near(self, dims: Dims) -> bool:
        return any(are_near(self._space, dims, other) for other in self._others)

    def _take_refused(self, most: int) -> None:
        """Of what was refused, first what is farthest from the others; the very same shapes only where there is nothing else."""
        if len(self.chosen) >= most or not self._refused:
            return

        def order(drawn: Drawn) -> tuple[bool, float]:
            far = octaves_between(self._space, drawn.dims, self._others)
            return self._is_withheld(drawn.dims), -far

        refused, self._refused = sorted(self._refused, key=order), []
        for same in (False, True):
            part = [drawn for drawn in refused if (drawn.dims in self._others) is same]
            while part and len(self.chosen) < most and not (same and self.chosen):
                few = max(most - len(self.chosen), _ASKED)
                self._probe([(drawn, None) for drawn in part[:few]], most)
                part = part[few:]

    def remark(self) -> str:
        """What should be known of the shapes that were chosen."""
        near = sum(self._is_near(drawn.dims) for drawn in self.chosen)
        same = sum(drawn.dims in self._others for drawn in self.chosen)
        inside = sum(self._is_withheld(drawn.dims) for drawn in self.chosen)
        of_all = f"of {len(self.chosen)} {self._split} shapes"
        told = []
        if near:
            told.append(f"{near} {of_all} are within {STEPS} steps or {SHARE:.0%} of those of other splits")
        if same:
            told.append(f"{same} of them are the very same")
        if inside:
            told.append(f"{inside} {of_all} are in the octave that is kept for held-out shapes")
        return f"too few shapes fit that lie apart: {', and '.join(told)}" if told else ""


class _Points:
    """Base points of one seed."""

    def __init__(self, space: Space, seed: str) -> None:
        self._space = space
        self._engine_seed = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:7], "big")
        self.generator = random.Random(seed)

    def points(self) -> Iterator[Dims]:
        """Endlessly many."""
        # The names of splits are also read where torch has no business, as in the command line of a service.
        from torch.quasirandom import SobolEngine

        engine = SobolEngine(len(self._space), scramble=True, seed=self._engine_seed)
        while True:
            for place in engine.draw(32).tolist():
                yield self._at(place)

    def moved_into(self, region: Region, count: int) -> Iterator[Dims]:
        """So many with one dimension within a region, the other ones smaller and smaller, down to their lower ends."""
        dim = self._space[region.name]
        assert isinstance(dim, IntegerDim)
        inner = IntegerDim(region.low, region.high, dim.multiple_of, dim.default)
        low, high = octaves(inner)
        for number, dims in enumerate(islice(self.points(), count)):
            share = 1 - number / (count - 1)
            small = {name: self._shrunk(name, size, share) for name, size in dims.items()}
            yield {**small, region.name: nearest(inner, 2 ** self.generator.uniform(low, high))}

    def _shrunk(self, name: str, size: Value, share: float) -> Value:
        dim = self._space[name]
        if not isinstance(dim, IntegerDim):
            return size
        low = octaves(dim)[0]
        return nearest(dim, 2 ** (low + (math.log2(max(int(size), 1)) - low) * share)) if share < 1 else size

    def _at(self, place: list[float]) -> Dims:
        shape: Dims = {}
        for (name, dim), share in zip(self._space.items(), place, strict=True):
            if isinstance(dim, ChoiceDim):
                shape[name] = dim.values[min(int(share * len(dim.values)), len(dim.values) - 1)]
            else:
                low, high = octaves(dim)
                shape[name] = nearest(dim, 2 ** (low + (high - low) * share), self.generator.choice(_TIERS))
        return shape

    def run(self, base: Dims) -> list[Dims]:
        """Neighbours of a base point in one dimension, in any order."""
        name = self.generator.choice([n for n, dim in self._space.items() if isinstance(dim, IntegerDim)])
        dim = self._space[name]
        assert isinstance(dim, IntegerDim)
        steps = self.generator.sample(_NEIGHBOURS, len(_NEIGHBOURS))
        moved = (nearest(dim, int(base[name]) + step * dim.multiple_of) for step in steps)
        return [{**base, name: value} for value in moved]
