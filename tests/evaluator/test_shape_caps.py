"""Caps of memory and time: what a call would take is told by fake tensors, and shapes beyond the device's share are not drawn."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest
import torch
from torch import nn

from evaluator.devices import CpuDevice
from evaluator.devices.base import Caps
from evaluator.referee.judging.core import RefereeCore
from evaluator.referee.session import task_session
from evaluator.roles.cost import of_call
from evaluator.shapes.sampler import COUNTS
from evaluator.shapes.strata import Drawn
from evaluator.sources import TaskSource

_CAPS = Caps(
    held_bytes=1 << 30, call_s=1.0, flops_per_s=1e9, bytes_per_s=1e9, operation_s=1e-3, judging_bytes=32
)
_NOTHING = {"held_bytes": 0, "written_bytes": 0, "flops": 0, "operations": 0, "outputs": 0, "passes": 1}


@pytest.mark.parametrize(
    ("figures", "allowed"),
    [
        ({}, True),
        ({"held_bytes": (1 << 30) + 1}, False),
        ({"outputs": 1 << 25}, True),
        ({"outputs": 1 << 25, "held_bytes": 1}, False),
        ({"flops": 9 * 10**8}, True),
        ({"flops": 9 * 10**8, "passes": 3}, False),
        ({"written_bytes": 6 * 10**8}, False),
        ({"operations": 1001}, False),
    ],
)
def test_each_figure_has_its_cap(figures: dict[str, int], allowed: bool) -> None:
    assert _CAPS.allow(**{**_NOTHING, **figures}) is allowed


def test_a_share_of_the_caps_is_a_share_of_memory_and_of_time() -> None:
    assert _CAPS.allow(**{**_NOTHING, "held_bytes": 1 << 29, "flops": 5 * 10**8}, share=0.5)
    assert not _CAPS.allow(**{**_NOTHING, "held_bytes": (1 << 29) + 1}, share=0.5)
    assert not _CAPS.allow(**{**_NOTHING, "flops": 6 * 10**8}, share=0.5)


def test_nothing_needs_more_than_a_share_of_the_memory() -> None:
    device = CpuDevice()
    assert 0 < device.caps.held_bytes <= device.memory_limit_bytes // 8


def test_a_call_is_counted_without_being_made() -> None:
    wide = 1 << 20

    def inputs() -> Any:
        return [torch.randn(wide, wide)]

    figures = of_call(lambda: nn.Linear(wide, 8, bias=False), inputs, 100)
    assert figures is not None
    assert figures["flops"] == 2 * wide * wide * 8 and figures["outputs"] == wide * 8
    assert figures["held_bytes"] == 4 * (wide * wide + 8 * wide + 2 * 8 * wide)
    assert figures["written_bytes"] == 4 * 8 * wide


def test_an_endless_call_is_counted_up_to_a_limit() -> None:
    class Endless(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            while True:
                x = x + 1

    figures = of_call(Endless, lambda: [torch.randn(4)], 50)
    assert figures is not None and figures["operations"] > 50


_TASK = textwrap.dedent("""
    import torch
    import torch.nn as nn

    from kernelbench_tasks import Dim

    DIMS = {"rows": Dim(1, 64, default=16), "cols": Dim(64, 65536, default=65536)}

    class Model(nn.Module):
        def __init__(self, cols):
            super().__init__()
            self.linear = nn.Linear(cols, 4096)

        def forward(self, x):
            return self.linear(x)

    def get_inputs(rows=16, cols=65536):
        return [torch.randn(rows, cols)]

    def get_init_inputs(cols=65536):
        return [cols]
""")


def test_weights_count_too_but_the_own_size_is_taken(
    core: RefereeCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    cap_bytes = 64 << 20
    monkeypatch.setattr(core.fleet, "caps", Caps(cap_bytes, 1.0, 1e12, 1e12, 1e-6))
    session = core.session(TaskSource("wide", _TASK))
    checked = session.drawn.sample("adversarial")
    assert checked and all(4 * 4096 * int(dims["cols"]) <= cap_bytes for dims in checked)
    # Beyond the caps as it is, it is what people run, and so is whatever is no larger.
    for split in ("visible", "validation", "held_out"):
        drawn = session.drawn.draw(split)
        assert drawn[0] == Drawn({"rows": 16, "cols": 65536}, "own")
        assert len(drawn) == COUNTS[split]
        assert all(int(one.dims["rows"]) <= 16 and one.dims["cols"] == 65536 for one in drawn)
    # So is what a user's program calls.
    traffic = task_session.parse_traffic([[{"rows": 1, "cols": 8192}, 1]], session.space)
    assert {"rows": 1, "cols": 8192} in session.drawn.sample("visible", traffic=traffic)
