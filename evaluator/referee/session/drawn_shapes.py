"""Chooses the shapes of an evaluation: drawn within the device's caps, or given by the request."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from evaluator.errors import RoleFailure
from evaluator.referee.processes.fleet import Fleet
from evaluator.referee.session.shape_caps import ShapeCaps
from evaluator.referee.sides.open_shape import freeze_dims
from evaluator.shapes.sampler import COUNTS, SPLITS, Sampler
from evaluator.shapes.space import Dims, Space, check_shape, in_words
from evaluator.shapes.strata import Drawn, Limits
from evaluator.shapes.traffic import Traffic, parse_traffic

#: Most input bytes of an adversarial shape (or twice the cache), and its share of the cap for a call. It is
#: repeated with several contents and in float64.
_CHECKED_CAP_BYTES, _CHECKED_SHARE = 64 << 20, 1 / 4
#: Most input bytes of a small shape, and the share of the cap for a call at a quick one.
SMALL_BYTES, _QUICK_SHARE = 4 << 20, 1 / 32


class DrawnShapes:
    """Draws the shapes of one task.

    Args:
        fleet: knows the device.
        space: the task's dimensions.
        sha256: of its source, the seed of every split but the held-out one.
        caps: tells which of its shapes are small and quick enough.
        traffic: of its own file.
        varying: the dimensions that vary in timed shapes.
    """

    def __init__(
        self,
        fleet: Fleet,
        space: Space,
        sha256: str,
        caps: ShapeCaps,
        traffic: Traffic,
        varying: Sequence[str],
    ) -> None:
        self._fleet = fleet
        self._space = space
        self._sha256 = sha256
        self._caps = caps
        self._traffic = traffic
        self._varying = varying
        self._samplers: dict[int, Sampler] = {}

    def sample(self, split: str, cap_bytes: int | None = None, traffic: Traffic | None = None) -> list[Dims]:
        """The shapes of :meth:`draw` alone."""
        return [drawn.dims for drawn in self.draw(split, cap_bytes, traffic)]

    def draw(
        self,
        split: str,
        cap_bytes: int | None = None,
        traffic: Traffic | None = None,
        chosen_by: Sequence[Dims] = (),
    ) -> list[Drawn]:
        """Shapes of a split with inputs below ``cap_bytes`` or the fleet's own cap.

        Held-out ones are drawn anew each time.

        Traffic (the task's own if none is given) replaces the task's own size in every timed split, with a few
        near shapes beside it. Held-out shapes avoid it, and avoid shapes that a request named to choose candidates
        by.
        """
        traffic = traffic or self._traffic
        given = [dims for dims, _ in traffic.rows]
        drawn = self.sampler(cap_bytes).draw(split, secret=secrets.token_hex(16), exempt=[*given, *chosen_by])
        if split == "adversarial" or not given:
            return drawn
        cap = cap_bytes or self._fleet.given_cap_bytes
        # The user's program has these shapes, however long they take.
        near = [one.dims for one in drawn if one.stratum == "near"]
        shapes = traffic.before(near, COUNTS[split], lambda shapes: self._caps.small(shapes, cap))
        found = [Drawn(dims, "traffic" if dims in given else "near") for dims in shapes]
        return found if any(one.stratum == "traffic" for one in found) else drawn

    def sampler(self, cap_bytes: int | None = None) -> Sampler:
        """The sampler for shapes with inputs below ``cap_bytes`` or the fleet's own cap."""
        cap = cap_bytes or self._fleet.input_cap_bytes
        if cap not in self._samplers:
            checked = min(cap, max(_CHECKED_CAP_BYTES, 2 * self._fleet.cache_bytes))
            self._samplers[cap] = Sampler(
                self._space,
                self._sha256,
                self._limits(cap, 1.0),
                self._limits(checked, _CHECKED_SHARE),
                self._varying,
            )
        return self._samplers[cap]

    def _limits(self, cap_bytes: int, share: float) -> Limits:
        return Limits(
            fit=lambda shapes: self._caps.fit(shapes, cap_bytes, share),
            sizes=self._caps.sizes,
            cap_bytes=cap_bytes,
            cache_bytes=self._fleet.cache_bytes,
            processors=self._fleet.processors,
        )

    def fitting(self, shapes: list[Dims], cap_bytes: int, share: float = 1.0) -> list[Dims]:
        """The shapes whose inputs stay below ``cap_bytes`` and whose calls stay within a share of the device's
        caps.
        """
        fits = self._caps.fit(shapes, cap_bytes, share) if shapes else []
        return [dims for dims, is_small in zip(shapes, fits, strict=True) if is_small]

    def quick(self, shapes: list[Dims]) -> list[Dims]:
        """The small shapes at which a call can be repeated many times."""
        return self.fitting(shapes, SMALL_BYTES, _QUICK_SHARE)

    def _checked(self, given: list[Dims]) -> list[Dims]:
        """Checks shapes that a request names: inside the space, and with inputs small enough for this machine."""
        shapes = [check_shape(self._space, dims) for dims in given]
        cap_bytes = self._fleet.given_cap_bytes
        for dims, is_small in zip(shapes, self._caps.small(shapes, cap_bytes) if shapes else [], strict=True):
            if not is_small:
                raise RoleFailure(
                    "task_rejected",
                    f"at {in_words(dims)} the inputs are larger than {cap_bytes >> 20} MiB, the limit of this machine",
                )
        return shapes

    def choose(
        self,
        splits: Sequence[str],
        given: Mapping[str, list[Dims]] | None,
        traffic: list[Any] | None,
        cap_bytes: int | None,
    ) -> Chosen:
        """The shapes of an evaluation.

        Args:
            splits: which splits it covers.
            given: by split, shapes that replace drawn ones. Given validation shapes that are not judged here are
                shapes that held-out ones avoid.
            traffic: weighted shapes that replace those of the task's own file.
            cap_bytes: limit for tasks that are slow with large inputs; None for the fleet's own cap.

        Raises:
            RoleFailure: ``task_rejected``, for an unknown split or a shape outside the task's space.
        """
        chosen = Chosen(parse_traffic(traffic, self._space) if traffic else self._traffic)
        given = given or {}
        for split in (*splits, *given):
            if split not in SPLITS:
                raise RoleFailure("task_rejected", f"unknown split {split!r}; known: {', '.join(SPLITS)}")
        for split in splits:
            if split in given:
                chosen.shapes[split] = self._checked(given[split])
                continue
            drawn = self.draw(split, cap_bytes, chosen.traffic, given.get("validation", ()))
            chosen.strata |= {(split, freeze_dims(one.dims)): one.stratum for one in drawn}
            chosen.shapes[split] = [one.dims for one in drawn]
            if remark := self.sampler(cap_bytes).remark(split):
                chosen.remarks.append(remark)
        if cap_bytes is not None:
            small = {split: self.fitting(shapes, cap_bytes) for split, shapes in chosen.shapes.items()}
            # If only large shapes were requested, slow shapes are better than none.
            chosen.shapes = small if any(small.values()) else chosen.shapes
        return chosen


@dataclass
class Chosen:
    """The shapes of one evaluation.

    Attributes:
        traffic: the weights of shapes.
        shapes: by split.
        strata: by split and shape, for drawn shapes; others were given.
        remarks: notes on how they were drawn.
    """

    traffic: Traffic
    shapes: dict[str, list[Dims]] = field(default_factory=dict)
    strata: dict[tuple[str, tuple[tuple[str, Any], ...]], str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

    def stratum(self, split: str, dims: Dims) -> str:
        """What a shape represents."""
        return self.strata.get((split, freeze_dims(dims)), "given")
