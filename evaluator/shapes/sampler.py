"""Draws the shapes of the four splits of a task.

Timed shapes represent real use, in three strata:

- ``own``: the sizes in the file, the same in every split;
- ``near``: dimensions that vary at run time, at 1/8 to 2 times their own size (:mod:`evaluator.shapes.near`);
- ``small``: batch 1 and other sizes at which launches dominate.

``adversarial`` has the named strata of :mod:`evaluator.shapes.strata` instead, because it looks for wrong results,
not
speed. There the configuration varies too, over its whole legal range.

Near shapes of different splits are kept apart (:mod:`evaluator.shapes.apart`): no ``validation`` shape is near a
``visible`` one, and no ``held_out`` shape is near either. If a space has too few shapes for that, the farthest
ones are
used, and :meth:`Sampler.remark` says so. Held-out shapes also avoid shapes of a user's own traffic.

Not drawn: inputs in other layouts or at misaligned addresses (layouts are what `get_inputs` makes; a delivered
module's
guards send everything else to the reference), and more than 2^31 elements (beyond a device's caps).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, product

from evaluator.shapes.apart import SHARE, STEPS, are_near, octaves_between
from evaluator.shapes.near import NearShapes
from evaluator.shapes.space import ChoiceDim, Dims, IntegerDim, Space, Value, defaults
from evaluator.shapes.strata import Drawn, Limits, draw_strata

SPLITS = ("visible", "validation", "held_out", "adversarial")
#: Timed shapes per split besides ``own``. Few, because each costs a compilation of every baseline for exactly this
#: shape.
NEAR = {"visible": 2, "validation": 3, "held_out": 4}
SMALL = {"visible": 0, "validation": 1, "held_out": 1}
COUNTS = {**{split: 1 + NEAR[split] + SMALL[split] for split in NEAR}, "adversarial": 8}
#: One of this many further validation shapes is small.
_SMALL_OF_FURTHER = 4
#: Proposals per wanted shape before the search ends.
_ATTEMPTS = 40
#: Least number of proposals that are probed at once: another request costs more than another shape.
_ASKED = 2


class Sampler:
    """The splits of one task under one set of limits; all but ``held_out`` are drawn once.

    Args:
        space: the task's dimensions.
        digest: of the task: same digest, same shapes.
        limits: of the device.
        checked: the same for ``adversarial`` shapes, whose checks must be quick.
        varying: the dimensions that vary in timed shapes, see :func:`evaluator.shapes.space.varying`.
    """

    def __init__(
        self, space: Space, digest: str, limits: Limits, checked: Limits, varying: Sequence[str]
    ) -> None:
        self.space = space
        self.own = Drawn(defaults(space), "own")
        self._digest = digest
        self.limits = limits
        self._checked = checked
        self._varying = varying
        self._varies = any(isinstance(space[name], IntegerDim) for name in varying)
        self._kept: dict[str, list[Drawn]] = {}
        self._remarks: dict[str, str] = {}

    def draw(self, split: str, *, secret: str = "", exempt: Sequence[Dims] = ()) -> list[Drawn]:
        """At most :data:`COUNTS` shapes of a split.

        Args:
            split: one of SPLITS.
            secret: seed of ``held_out``, which must be unknown in advance; unused elsewhere.
            exempt: shapes of a user's real program; ``held_out`` avoids them too.
        """
        if split == "held_out":
            return self._draw(split, secret, exempt)
        if split not in self._kept:
            self._kept[split] = self._draw(split, self._digest, ())
        return self._kept[split]

    def further(self, count: int) -> list[Drawn]:
        """At most ``count`` further validation shapes, near and small, to choose among candidates; the same every
        time.

        The caller must tell the held-out split to avoid them.
        """
        if not self._varies:
            return []
        visible = self._near_of("visible")
        known = [drawn.dims for drawn in self.draw("validation")]
        search = _Search(self, f"further:{self._digest}", visible, known)
        near = search.take("near", count - count // _SMALL_OF_FURTHER, refused=False)
        return near + search.take("small", count // _SMALL_OF_FURTHER)

    def remark(self, split: str) -> str:
        """Why the shapes last drawn for a split are closer to other splits than they should be; empty if they are
        not.
        """
        return self._remarks.get(split, "")

    def proposals(self, seed: str) -> NearShapes:
        """Near and small shapes of one seed."""
        return NearShapes(self.space, self._varying, self.own.dims, seed)

    def _near_of(self, split: str) -> list[Dims]:
        return [drawn.dims for drawn in self.draw(split) if drawn.stratum == "near"]

    def _draw(self, split: str, seed: str, exempt: Sequence[Dims]) -> list[Drawn]:
        if split == "adversarial":
            if any(isinstance(dim, IntegerDim) for dim in self.space.values()):
                return draw_strata(self.space, seed, self._checked, COUNTS[split])
            return self._choices(list(self.space), COUNTS[split], "choices")
        if not self._varies:
            return self._choices(self._varying, 1 + NEAR[split], "near")
        before = {"visible": (), "validation": ("visible",), "held_out": ("visible", "validation")}[split]
        others = [dims for earlier in before for dims in self._near_of(earlier)] + list(exempt)
        search = _Search(self, f"{split}:{seed}", others)
        near = search.take("near", NEAR[split])
        self._remarks[split] = search.remark(near, split)
        return [self.own, *near, *search.take("small", SMALL[split])]

    def _choices(self, names: Sequence[str], most: int, stratum: str) -> list[Drawn]:
        """For tasks without a varying size: the task's own shape, and others with other choices; the same in every
        split.
        """
        values = {n: dim.values for n, dim in self.space.items() if n in names and isinstance(dim, ChoiceDim)}
        combinations = islice(product(*values.values()), most)
        shapes = [self.own.dims | dict(zip(values, chosen, strict=True)) for chosen in combinations]
        others = [Drawn(dims, stratum) for dims in shapes if dims != self.own.dims]
        return [self.own, *others[: most - 1]]


class _Search:
    """Fills one split."""

    def __init__(self, sampler: Sampler, seed: str, others: list[Dims], known: Sequence[Dims] = ()) -> None:
        self._space = sampler.space
        self._limits = sampler.limits
        self._own = sampler.own.dims
        self._proposals = sampler.proposals(seed)
        self._others = others
        self._seen = {_key(dims) for dims in (self._own, *known)}

    def take(self, stratum: str, most: int, *, refused: bool = True) -> list[Drawn]:
        """At most ``most`` shapes of a stratum: near ones that are apart first, others only if ``refused`` ones
        may be taken.
        """
        apart: list[Dims] = []
        too_near: list[Dims] = []
        for few in _batched(self._new(getattr(self._proposals, stratum)(), most), max(most, _ASKED)):
            for dims in self._possible(few):
                near = stratum == "near" and self._is_near(dims)
                (too_near if near else apart).append(dims)
            if len(apart) >= most:
                break
        if refused:
            far = sorted(too_near, key=lambda dims: -octaves_between(self._space, dims, self._others))
            apart += [dims for dims in far if dims not in self._others]
            # Identical shapes only if there is nothing else.
            apart = apart or far
        return [Drawn(dims, stratum) for dims in apart[:most]]

    def _possible(self, shapes: list[Dims]) -> list[Dims]:
        """Shapes within the device's caps, or no larger in any dimension than the task's own shape, which is
        always taken.
        """
        larger = [dims for dims in shapes if not self._is_within_own(dims)]
        fits = dict(zip(map(_key, larger), self._limits.fit(larger) if larger else [], strict=True))
        return [dims for dims in shapes if fits.get(_key(dims), True)]

    def remark(self, chosen: list[Drawn], split: str) -> str:
        """A note about the chosen shapes, if needed."""
        near = sum(self._is_near(drawn.dims) for drawn in chosen)
        same = sum(drawn.dims in self._others for drawn in chosen)
        if not near:
            return ""
        told = f"{near} of {len(chosen)} {split} shapes are within {STEPS} steps or {SHARE:.0%} of those of other splits"
        return f"too few shapes fit that lie apart: {told}" + (
            f", and {same} of them are identical" if same else ""
        )

    def _new(self, proposals: Iterator[Dims], most: int) -> Iterator[Dims]:
        for dims in islice(proposals, _ATTEMPTS * most):
            if _key(dims) not in self._seen:
                self._seen.add(_key(dims))
                yield dims

    def _is_near(self, dims: Dims) -> bool:
        return any(are_near(self._space, dims, other) for other in self._others)

    def _is_within_own(self, dims: Dims) -> bool:
        return all(
            int(dims[name]) <= int(self._own[name])
            for name, dim in self._space.items()
            if isinstance(dim, IntegerDim)
        )


def _key(dims: Dims) -> tuple[Value, ...]:
    return tuple(dims.values())


def _batched(shapes: Iterator[Dims], size: int) -> Iterator[list[Dims]]:
    while few := list(islice(shapes, size)):
        yield few
