"""The delivered file where a part of the module is not as the whole is: its mode, its copies for other GPUs, its members' text."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from agent.candidates import Candidate
from tests.agent.bundle.building import MEMBER, TASK, imported, inputs, optimized_text, ran, right

WITH_DROPOUT = TASK.replace(
    "self.factor = factor", "self.factor = factor\n        self.drop = nn.Dropout(0.5)"
).replace("+ residual\n", "+ self.drop(residual)\n")

# Keeps what it has made of the weights, so that a test sees whether it is built anew.
PACKING = """
import torch
import torch.nn as nn

calls = []


class ModelNew(nn.Module):
    def __init__(self, packed, shift):
        super().__init__()
        self.packed, self.shift = packed, shift

    @classmethod
    def from_reference(cls, reference):
        return cls((reference.weight * reference.factor).detach().clone(), reference.shift.clone())

    def forward(self, x, residual):
        calls.append(1)
        return torch.addcmul(self.shift + residual, x, self.packed)
"""


@pytest.mark.parametrize("built_before", [False, True])
def test_a_part_in_training_mode_takes_the_reference(tmp_path: Path, built_before: bool) -> None:
    """Dropout at prediction draws several answers: the whole is in eval mode and its dropout alone is not."""
    module = imported(tmp_path, optimized_text(task=WITH_DROPOUT))
    model, (x, residual) = module.ModelNew(64).eval(), inputs()
    with torch.no_grad():
        if built_before:
            assert ran(module, lambda: model(x, residual))
        model.drop.train()
        assert not ran(module, lambda: model(x, residual))
        assert not torch.equal(model(x, residual), model(x, residual))
        assert "reference" in model.kernelwright_explain(x, residual)
        model.drop.eval()
        assert ran(module, lambda: model(x, residual))
        model.train()
        model.drop.eval()
        assert not ran(module, lambda: model(x, residual)), (
            "who is in training mode as a whole was not judged"
        )


def _replica(model: Any) -> Any:
    """What `torch.nn.DataParallel` makes of a module for each GPU, as `torch.nn.parallel.replicate` does."""
    replica = model._replicate_for_data_parallel()
    for name, parameter in model._parameters.items():
        setattr(replica, name, parameter.detach().clone())
    return replica


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("source", [PACKING, MEMBER])
def test_copies_for_other_gpus_do_not_keep_old_weights(tmp_path: Path, source: str) -> None:
    module = imported(tmp_path, optimized_text([Candidate(source, "llm", "packs")]))
    model, (x, residual) = module.ModelNew(64), inputs()
    model.float()  # like .cuda(): nothing is built yet when the first copy is called
    with torch.no_grad():
        right(module, _replica(model), x, residual)
        model.weight.add_(1.0)
        right(module, _replica(model), x, residual)
        right(module, model, x, residual)
        assert ran(module, lambda: model(x, residual)), "copies do not take the member away"


@pytest.mark.parametrize("text", ["# torch.compile( was slower", "fast = torch.compile(torch.addcmul)"])
def test_a_member_that_speaks_of_compiling_may_still_pack_weights(tmp_path: Path, text: str) -> None:
    source = MEMBER.replace("calls = []", f"calls = []\n{text}")
    module = imported(tmp_path, optimized_text([Candidate(source, "llm", "packs")]))
    model, (x, residual) = module.ModelNew(64), inputs()
    with torch.no_grad():
        right(module, model, x, residual)
        model.weight.add_(1.0)
        assert ran(module, lambda: model(x, residual))
        right(module, model, x, residual)


UNSAVED = TASK.replace("torch.zeros(cols))", "torch.zeros(cols), persistent=False)")
TABLE = MEMBER.replace("torch.zeros(cols))", "torch.zeros(cols), persistent=False)")
# Has the table written into its code.
WITHOUT_TABLE = MEMBER.replace('        self.register_buffer("shift", torch.zeros(cols))\n', "").replace(
    "self.shift + ", ""
)


@pytest.mark.parametrize("change", ["in_place", "replaced", "from the start", "pickled"])
@pytest.mark.parametrize("source", [TABLE, WITHOUT_TABLE])
def test_a_buffer_that_is_not_saved_is_the_module_s(tmp_path: Path, change: str, source: str) -> None:
    """It is in no state_dict, and a member's constructor makes another one than the module has by now: the reference runs."""
    module = imported(tmp_path, optimized_text([Candidate(source, "llm", "a table")], task=UNSAVED))
    model, (x, residual) = module.ModelNew(64), inputs()
    with torch.no_grad():
        if change != "from the start":
            assert ran(module, lambda: model(x, residual))
        if change == "replaced":
            model.shift = torch.ones(64)
        else:
            model.shift.add_(1.0)
        if change == "pickled":
            model = pickle.loads(pickle.dumps(model))
        assert not ran(module, lambda: model(x, residual))
        right(module, model, x, residual)
        model.shift.zero_()
        assert ran(module, lambda: model(x, residual)), "as it was made"
        right(module, model, x, residual)
