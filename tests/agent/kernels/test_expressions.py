"""Expressions for kernels, evaluated by torch."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from agent.kernels.rewriting.expressions import _UNARY


def test_tanh_is_right_to_a_few_units_in_the_last_place() -> None:
    def where(at: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.where(at, a, b)

    x = torch.cat(
        [torch.linspace(-12, 12, 200_001), torch.tensor([1e-30, -1e30, torch.inf, -torch.inf, torch.nan])]
    )
    names = {"x": x, "tl": SimpleNamespace(where=where, abs=torch.abs, exp=torch.exp)}
    found = eval(_UNARY["tanh"].format(x="x"), names)
    torch.testing.assert_close(found.double(), x.double().tanh(), rtol=5e-7, atol=0, equal_nan=True)
