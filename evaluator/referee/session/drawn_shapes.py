"""At which shapes a task is looked at: those that are drawn for it within the device's caps, and those that somebody gave."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from evaluator.errors import RoleFailure
from evaluator.referee.processes.fleet import Fleet
from evaluator.referee.session.shape_caps import ShapeCaps
from evaluator.referee.sides.open_shape import freeze_dims
from evaluator.shapes.drawing import Drawn, Limits
from evaluator.shapes.sampler import COUNTS, SPLITS, Sampler
from evaluator.shapes.space import Dims, Space, check_shape
from evaluator.shapes.traffic import Traffic, parse_traffic

#: Inputs of an adversarial shape, at most (or twice the cache), and its share of what a call may take: it is repeated with
#: several contents and in float64.
_CHECKED_CAP_BYTES, _CHECKED_SHARE = 64 << 20, 1 / 4


class DrawnShapes:
    """The shapes of one task that are drawn.

    Args:
        fleet: knows the device.
        space: the task's dimensions.
        sha256: of its text, which is the seed of every split but the held-out one.
        caps: what of its shapes is small and quick enough.
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
        """Shapes of a split, of inputs below ``cap_bytes`` or the fleet's own cap. Held-out ones are drawn anew each time.

        Where there is traffic (the task's own if none is given), it takes the place of the task's own size in every timed split,
        and a few near shapes stand beside it. Held-out ones stay away from it, and from shapes that somebody else chose by.
        """
        traffic = traffic or self._traffic
        given = [dims for dims, _ in traffic.rows]
        drawn = self.sampler(cap_bytes).draw(split, secret=secrets.token_hex(16), exempt=[*given, *chosen_by])
        if split == "adversarial" or not given:
            return drawn
        cap = cap_bytes or self._fleet.given_cap_bytes
        # The user's program has these, however long they take.
        near = [one.dims for one in drawn if one.stratum == "near"]
        shapes = traffic.before(near, COUNTS[split], lambda shapes: self._caps.small(shapes, cap))
        found = [Drawn(dims, "traffic" if dims in given else "near") for dims in shapes]
        return found if any(one.stratum == "traffic" for one in found) else drawn

    def sampler(self, cap_bytes: int | None = None) -> Sampler:
        """What draws shapes of inputs below ``cap_bytes`` or the fleet's own cap."""
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
        """Those whose inputs stay below ``cap_bytes`` and whose calls stay within a share of the device's caps."""
        fits = self._caps.fit(shapes, cap_bytes, share) if shapes else []
        return [dims for dims, is_small in zip(shapes, fits, strict=True) if is_small]

    def _of_somebody(self, given: list[Dims]) -> list[Dims]:
        """Shapes that somebody names: within the space, and with inputs of which this machine can hold many."""
        shapes = [check_shape(self._space, dims) for dims in given]
        cap_bytes = self._fleet.given_cap_bytes
        for dims, is_small in zip(shapes, self._caps.small(shapes, cap_bytes) if shapes else [], strict=True):
            if not is_small:
                named = ", ".join(f"{name}={size}" for name, size in dims.items())
                raise RoleFailure(
                    "task_rejected",
                    f"at {named} the inputs are larger than {cap_bytes >> 20} MiB, the most that is judged here",
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
            splits: which it looks at.
            given: of some splits the shapes, instead of those that are drawn. Validation shapes that are given although nothing is
                judged there are ones that held-out shapes stay away from.
            traffic: shapes with weights, instead of those of the task's own file.
            cap_bytes: for what takes long with large inputs; None for the fleet's own cap.

        Raises:
            RoleFailure: ``task_rejected``, for a split that there is not or a shape outside the task's space.
        """
        chosen = Chosen(parse_traffic(traffic, self._space) if traffic else self._traffic)
        given = given or {}
        for split in (*splits, *given):
            if split not in SPLITS:
                raise RoleFailure("task_rejected", f"unknown split {split!r}; known: {', '.join(SPLITS)}")
        for split in splits:
            if split in given:
                chosen.shapes[split] = self._of_somebody(given[split])
                continue
            drawn = self.draw(split, cap_bytes, chosen.traffic, given.get("validation", ()))
            chosen.strata |= {(split, freeze_dims(one.dims)): one.stratum for one in drawn}
            chosen.shapes[split] = [one.dims for one in drawn]
            if remark := self.sampler(cap_bytes).remark(split):
                chosen.remarks.append(remark)
        if cap_bytes is not None:
            small = {split: self.fitting(shapes, cap_bytes) for split, shapes in chosen.shapes.items()}
            # Rather slow than unseen, where somebody asked for large shapes only.
            chosen.shapes = small if any(small.values()) else chosen.shapes
        return chosen


@dataclass
class Chosen:
    """The shapes of one evaluation.

    Attributes:
        traffic: by which they are weighted.
        shapes: by split.
        strata: by split and shape, of those that were drawn; others were given.
        remarks: what is to be said of how they were drawn.
    """

    traffic: Traffic
    shapes: dict[str, list[Dims]] = field(default_factory=dict)
    strata: dict[tuple[str, tuple[tuple[str, Any], ...]], str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

    def stratum(self, split: str, dims: Dims) -> str:
        """For what a shape stands."""
        return self.strata.get((split, freeze_dims(dims)), "given")
