"""Recurrent layers: which become the library's operation, and that the kernel computes them."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from agent.compiler.inductor import assemble
from agent.errors import ProposalFailed
from agent.kernels.gpu import calls, recurrent
from agent.kernels.writing import rewriting_text, with_library
from tests.agent.compiler.extraction import capture_text, run_program
from tests.agent.kernels.test_rewriting import INTERPRETED

# Errors against float64, beside those of torch's float32.
COMPUTED = """
import json, torch
from agent.kernels.gpu import calls, recurrent
calls.recurrent_pays = lambda *_: True
calls.layers_at_once = lambda *_: 3
torch.manual_seed(0)
cases = [  # layers, directions, biases, batch first; steps, rows, inputs, units
    (3, 1, True, True, 5, 3, 7, 20), (2, 2, True, False, 3, 2, 5, 17), (1, 1, False, False, 3, 1, 40, 33),
    (4, 1, False, True, 2, 17, 8, 16), (1, 2, False, True, 1, 2, 3, 4),
]
layers_of = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}

def compare(kind, layers, directions, biases, batch_first, steps, rows, inputs, units, spoil=None):
    more = {} if kind in layers_of else {"nonlinearity": kind}
    model = layers_of.get(kind, torch.nn.RNN)(
        inputs, units, layers, bias=biases, batch_first=batch_first, bidirectional=directions == 2, **more
    ).eval()
    x = torch.randn((rows, steps, inputs) if batch_first else (steps, rows, inputs))
    states = [torch.randn(layers * directions, rows, units) for _ in range(1 + (kind == "lstm"))]
    if spoil is not None:
        x[0, 0, 0] = spoil
    given = lambda one: (one(x), tuple(map(one, states)) if kind == "lstm" else one(states[0]))
    flat = lambda out: [out[0], *(out[1] if kind == "lstm" else out[1:])]
    ours = calls.library_recurrent(x, states, model._flat_weights, biases, layers, directions == 2, batch_first, kind)
    torchs = flat(model(*given(lambda one: one)))
    exact = flat(model.double()(*given(torch.Tensor.double)))
    ours = ours[: len(exact)]
    return ours, torchs, exact

found = []
with torch.no_grad():
    for kind in ("lstm", "gru", "tanh", "relu"):
        for case in cases if kind in layers_of else cases[:2]:
            ours, torchs, exact = compare(kind, *case)
            same = all(a.shape == b.shape and a.stride() == b.stride() for a, b in zip(ours, torchs))
            errors = [max(float((a - b).abs().max()) for a, b in zip(some, exact)) for some in (ours, torchs)]
            found.append([kind, case, same, *errors])
    spoiled = []
    for kind in ("lstm", "gru", "tanh", "relu"):
        for value in (torch.inf, -torch.inf, torch.nan):
            ours, torchs, _ = compare(kind, 2, 1, True, True, 3, 2, 5, 17, value)
            spoiled.append(all(torch.allclose(a, b, atol=1e-5, equal_nan=True) for a, b in zip(ours, torchs)))
print(json.dumps([found, spoiled]))
"""


def test_steps_of_all_layers_and_of_both_directions_are_torch_s(tmp_path: Path) -> None:
    found, spoiled = run_program(tmp_path, INTERPRETED + COMPUTED)
    assert len(found) == 14
    assert all(same and ours < 3e-7 + 2 * theirs for _, _, same, ours, theirs in found), found
    assert spoiled == [True] * 12, "infinities and NaN go where torch puts them"


@pytest.mark.parametrize(
    ("kind", "layers", "directions", "rows", "units", "together"),
    [
        ("lstm", 6, 1, 10, 256, 6),
        ("lstm", 12, 1, 10, 256, 8),  # 16 programs a layer on 132 multiprocessors
        ("gru", 6, 1, 17, 256, 4),
        ("gru", 6, 2, 10, 256, 1),
        ("lstm", 2, 1, 64, 512, 1),  # two layers' weights do not fit
        ("lstm", 1, 2, 40, 512, 0),
        ("lstm", 1, 1, 10, 1024, 0),
        ("tanh", 3, 1, 10, 512, 3),
        ("tanh", 3, 1, 10, 1024, 1),
        ("relu", 1, 2, 10, 1040, 0),
    ],
)
def test_layers_run_together_as_far_as_programs_and_weights_have_room(
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    layers: int,
    directions: int,
    rows: int,
    units: int,
    together: int,
) -> None:
    monkeypatch.setattr(recurrent, "processors", lambda _: 132)
    monkeypatch.setattr(recurrent, "_shared_bytes", lambda _: 227 << 10)
    assert recurrent.layers_at_once(None, kind, layers, directions, rows, units) == together


REFERENCE = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, inputs=6, units=8):
        super().__init__()
        self.first = nn.LSTM(inputs, units, 2, batch_first=True)
        self.then = nn.GRU(units, units, bidirectional=True, batch_first=True)
        self.last = nn.RNN(2 * units, units, nonlinearity="relu", bias=False)
        self.head = nn.Linear(units, 3)

    def forward(self, x, h, c):
        x, (h, c) = self.first(x, (h, c))
        x, _ = self.then(x)
        x, end = self.last(x.transpose(0, 1))
        return self.head(x[-1]), h.relu(), c, end


def get_inputs(batch=4, steps=600):
    return [torch.randn(batch, steps, 6), torch.randn(2, batch, 8), torch.randn(2, batch, 8)]


def get_init_inputs():
    return []
"""
DIMS = {name: {"min": 1, "max": 999, "multiple_of": 1, "default": 20} for name in ("batch", "steps")}

# Without a GPU the call is torch's.
RUN = """
import json, torch, reference, candidate
torch.manual_seed(0)
model, new = reference.Model().eval(), candidate.ModelNew().eval()
new.load_state_dict(model.state_dict(), strict=True)
reached, layer = [], candidate.library_recurrent
candidate.library_recurrent = lambda *given: (reached.append(1), layer(*given))[1]
same = []
with torch.no_grad():
    for sizes in ((4, 7), (3, 2), (2, 600)):
        given = reference.get_inputs(*sizes)
        pairs = zip(new(*given), model(*given), strict=True)
        same += [a.stride() == b.stride() and torch.allclose(a, b, atol=1e-5) for a, b in pairs]
print(json.dumps({"reached": len(reached), "same": same}))
"""


def test_layers_of_all_kinds_are_called_with_steps_as_a_symbol(tmp_path: Path) -> None:
    files = {"rewriting.py": rewriting_text()}
    found = json.loads(
        capture_text(tmp_path / "a", REFERENCE, DIMS, files=files, own={"batch": 4, "steps": 600})
    )
    for one in (found, found["own"]):
        assert (one["library_fault"], one["module"]) == ("", "")
        assert one["library"].count("kernelwright.recurrent.default(") == 3
    text, operations = with_library(found["library"])
    assert "recurrent" in operations
    (tmp_path / "reference.py").write_text(REFERENCE)
    (tmp_path / "candidate.py").write_text(
        assemble(json.dumps(found), REFERENCE, "name", changed=lambda _: text)
    )
    assert run_program(tmp_path, RUN) == {"reached": 9, "same": [True] * 12}
    with pytest.raises(ProposalFailed, match="for a recurrent layer"):
        assemble(json.dumps(found), REFERENCE, "name")


KEPT = """
import json, torch
from torch.nn.utils.rnn import pack_padded_sequence
from agent.kernels.rewriting import operations
from agent.kernels.rewriting.recurrent import recurrent_layers

called = []
operations._LIBRARY.impl("recurrent", lambda *given: (called.append(1), operations._recurrent(*given))[1], "CPU")

def is_ours(layer, x):
    called.clear()
    with recurrent_layers():
        layer(x)
    return bool(called)

x = torch.randn(3, 2, 5)
packed = pack_padded_sequence(x, torch.tensor([3, 2]))
with torch.no_grad():
    print(json.dumps([
        is_ours(torch.nn.LSTM(5, 4, 2, dropout=0.5).eval(), x),
        is_ours(torch.nn.GRU(5, 4), x),
        is_ours(torch.nn.LSTM(5, 4, 2, dropout=0.5).train(), x),
        is_ours(torch.nn.LSTM(5, 4, proj_size=3), x),
        is_ours(torch.nn.GRU(5, 4).double(), x.double()),
        is_ours(torch.nn.GRU(5, 4), packed),
        is_ours(torch.nn.LSTM(5, 4), packed),
        is_ours(torch.nn.LSTM(5, 4, 2, bias=False, bidirectional=True).train(), packed),
    ]))
"""


def test_dropout_projections_packed_sequences_and_other_types_stay_torch_s(tmp_path: Path) -> None:
    assert run_program(tmp_path, KEPT) == [True] * 2 + [False] * 6


def flat(given: Any) -> list[torch.Tensor]:
    """Of a layer's results, the states of an LSTM among them, the tensors."""
    return [given] if isinstance(given, torch.Tensor) else [tensor for one in given for tensor in flat(one)]


@pytest.mark.gpu
@pytest.mark.parametrize(("kind", "layers", "directions"), [("lstm", 3, 1), ("gru", 2, 2), ("tanh", 2, 1)])
def test_on_a_gpu_repeated_steps_are_as_accurate_as_cudnn(
    strict_float32: None, kind: str, layers: int, directions: int
) -> None:
    more: dict[str, Any] = {} if kind in ("lstm", "gru") else {"nonlinearity": kind}
    made = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}.get(kind, torch.nn.RNN)
    torch.manual_seed(0)
    layer = made(70, 96, layers, bidirectional=directions == 2, **more).cuda().eval()
    x = torch.randn(50, 10, 70, device="cuda")
    states = [torch.randn(layers * directions, 10, 96, device="cuda") for _ in range(1 + (kind == "lstm"))]
    given = tuple(states) if kind == "lstm" else states[0]
    weights = list(layer._flat_weights)
    with torch.no_grad():
        assert recurrent.recurrent_pays(x, states, weights, kind, layers, directions, False)
        torchs = flat(layer(x, given))
        exact = flat(
            copy.deepcopy(layer).double()(
                x.double(), tuple(one.double() for one in states) if kind == "lstm" else given.double()
            )
        )

        def ours() -> list[torch.Tensor]:
            found = calls.library_recurrent(x, states, weights, True, layers, directions == 2, False, kind)
            return flat(found)[: len(exact)]

        found = [ours() for _ in range(3)]  # written out, noted, and repeated
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found.append(ours())
        for _ in range(2):
            graph.replay()
    assert len(exact) == (3 if kind == "lstm" else 2)
    for one in found:
        for mine, theirs, right in zip(one, torchs, exact, strict=True):
            errors = [float((result - right).abs().max()) for result in (mine, theirs)]
            assert errors[0] <= 3e-7 + 2 * errors[1], errors
