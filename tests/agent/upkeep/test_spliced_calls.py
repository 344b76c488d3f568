"""Calls of a spliced submodule for which optimized.py was not compared: they are the submodule's own."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from agent.upkeep import apply_program
from agent.upkeep.apply_program import write_splice

_numbers = itertools.count()

# Gives the tensors alone, as what `capture` writes does; `calls` tells whether it ran.
OPTIMIZED = """
import torch
from torch import nn

calls = []


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(8))

    def forward(self, x):
        calls.append(tuple(x.shape))
        return x * self.weight
"""


class Block(nn.Module):
    """A result in the form that is asked for."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8))
        self.drop = nn.Dropout(0.5)
        self.form = form

    def forward(self, x: torch.Tensor) -> Any:
        out = self.drop(x * self.weight)
        if self.form == "size":
            return out, len(x)
        if self.form == "content":
            return {"out": out, "largest": float(x.max())}
        if self.form == "parts":
            return list(out.unbind(0))
        return (out, None) if self.form == "tuple" else out


def spliced(folder: Path, form: str) -> tuple[Any, Any, ModuleType]:
    """A model with a spliced block, the same without, and splice.py."""
    model = nn.Sequential(Block(form)).eval()
    (folder / "optimized.py").write_text(OPTIMIZED)
    request = {"task": "", "module": "0", "digest": f"of_these_calls_{next(_numbers)}"}
    forms = [("tuple", ("tuple", ("tensor", 0)), ("dict",))]
    direct = form == "tensor"
    write_splice(request, folder, model[0], {"weight": "weight"}, [], forms, direct=direct)
    spec = importlib.util.spec_from_file_location(request["digest"], folder / "splice.py")
    assert spec is not None and spec.loader is not None
    patch = importlib.util.module_from_spec(spec)
    sys.modules[request["digest"]] = patch
    spec.loader.exec_module(patch)
    plain = Block(form).eval()
    plain.load_state_dict(model[0].state_dict())
    return patch.splice(model), plain, patch


@pytest.mark.parametrize("form", ["tensor", "tuple", "size", "content", "parts"])
def test_what_stands_beside_the_tensors_belongs_to_the_call(tmp_path: Path, form: str) -> None:
    """The number of rows, a loss as a float, as many tensors as there are rows: the first call's are not the next one's."""
    model, plain, patch = spliced(tmp_path, form)
    with torch.no_grad():
        for rows in (4, 4, 6, 2, 4):
            x = torch.randn(rows, 8)
            found, expected = model(x), plain(x)
            assert type(found) is type(expected)
            torch.testing.assert_close(_parts(found), _parts(expected))
    assert bool(patch.optimized.calls) is (form in ("tensor", "tuple", "parts"))


def _parts(value: Any) -> list[Any]:
    parts = (
        value.values() if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else [value]
    )
    return [part if isinstance(part, torch.Tensor) else float(part or 0.0) for part in parts]


def test_a_child_in_another_mode_is_the_submodule_s(tmp_path: Path) -> None:
    """Dropout at prediction: the block is in eval mode, its dropout is not."""
    model, _, patch = spliced(tmp_path, "tensor")
    x = torch.ones(4, 8)
    with torch.no_grad():
        before = model(x)
        assert len(patch.optimized.calls) == 1
        model[0].drop.train()
        assert not torch.equal(model(x), model(x))
        assert "mode" in model[0].kernelwright_explain(x)
        model[0].drop.eval()
        assert torch.equal(model(x), before)
    assert len(patch.optimized.calls) == 2


@pytest.mark.parametrize("called_before", [False, True])
def test_copies_for_other_gpus_run_the_submodule(tmp_path: Path, called_before: bool) -> None:
    """What `torch.nn.DataParallel` makes: its weights lie on another GPU than those that are linked."""
    model, plain, patch = spliced(tmp_path, "tensor")
    x = torch.randn(4, 8)
    with torch.no_grad():
        if called_before:
            model(x)
        replica = model[0]._replicate_for_data_parallel()
        replica.weight = (
            2.0 * model[0].weight.detach()
        )  # as torch.nn.parallel.replicate sets it; other values here
        torch.testing.assert_close(replica(x), 2.0 * plain(x))
        torch.testing.assert_close(model(x), plain(x))
    assert len(patch.optimized.calls) == 1 + called_before


@pytest.mark.parametrize("fill", [-1e9, torch.finfo(torch.float32).min])
def test_its_own_test_sees_what_stands_beside_a_mask_s_constant(fill: float) -> None:
    text = (Path(apply_program.__file__).parent / "templates" / "test_splice.py.template").read_text()
    begin, end = text.index("def distance"), text.index("def every_difference")
    names: dict[str, Any] = {"torch": torch, "ERROR_FACTOR": 4.0}
    exec(text[begin:end], names)
    kind = torch.finfo(torch.float32)
    old = torch.randn(8, 16).double()
    old[:, ::3] = fill
    # As float64 has its own lowest number.
    right = torch.where(
        old == fill, torch.finfo(torch.float64).min if fill < -1e9 else fill, old * (1 + 1e-8)
    )
    for new, is_right in (
        (torch.where(old == fill, old, old * (1 + 1e-7)), True),
        (torch.where(old == fill, old, 0.0), False),
        (torch.where(old == fill, old, old + 1e-3), False),
        (torch.where(old == fill, 0.0, old), False),
    ):
        for known in (right, old):
            error, allowed = names["distance"](old, new, known, kind, 8 if known is right else 256)
            assert (error <= allowed) == is_right, (error, allowed)
