"""The back end for the CPU of this machine."""

from __future__ import annotations

from typing import Any

from evaluator.devices.base import Backend
from evaluator.devices.cpu.device import CpuDevice


def _ceilings() -> dict[str, Any]:
    from evaluator.devices.cpu.ceilings import measure

    return measure()


CPU = Backend(
    name="cpu",
    is_accelerator=False,
    cores_per_referee=4.0,
    most_referees=4,
    # Opening a task takes as long as judging a few candidates.
    worth_sharing=4,
    open=lambda visible: CpuDevice(),
    is_usable=lambda: True,
    ceilings=_ceilings,
)
