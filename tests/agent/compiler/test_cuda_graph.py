"""A module as a CUDA graph: the file, where it must not replay, and on a GPU that a replay is the module."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from agent.bundle.sections import cut
from agent.compiler.cuda_graph import cuda_graph_source
from agent.errors import ProposalFailed
from evaluator.client import Referee
from evaluator.sources import CandidateSource, TaskSource
from tests.agent.compiler.extraction import names_bound_in_calls, run_program, task_text

NAME = "matmul_bias_relu"

#: Sizes and weights change, a copy is made, and gradients are wanted.
USED = """
import copy, json, torch, reference, candidate
device = "cuda" if torch.cuda.is_available() else "cpu"
model = reference.Model(16, 8).eval().to(device)
new = candidate.ModelNew(16, 8).eval().to(device)
right = True
for _ in range(3):
    for weight in model.parameters():
        weight.data = torch.randn_like(weight)
    new.load_state_dict(model.state_dict(), strict=True)
    for rows in (3, 70, 3):
        x = torch.randn(rows, 16, device=device)
        with torch.no_grad():
            first, second = new(x), new(x + 1)
            right &= torch.allclose(first, model(x), atol=1e-4) and torch.allclose(second, model(x + 1), atol=1e-4)
            right &= torch.allclose(copy.deepcopy(new)(x), first, atol=1e-5)
    for weight in new.parameters():
        weight.data = torch.randn_like(weight)
    with torch.no_grad():
        right &= not torch.allclose(new(x), first, atol=1e-4)
new(x).sum().backward()
print(json.dumps({"right": bool(right), "graphs": len(new._graphs), "graded": new.weight.grad is not None
                  if hasattr(new, "weight") else all(p.grad is not None for p in new.parameters())}))
"""


MEMBER = """
from __future__ import annotations

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, inner, outer):
        super(ModelNew, self).__init__()
        self.weight = nn.Parameter(torch.randn(inner, outer))
        self.bias = nn.Parameter(torch.randn(outer))

    def forward(self, x: torch.Tensor):
        return torch.relu(x @ self.weight + self.bias)
"""

WITHOUT_A_GPU = """
import copy, json, pickle, torch, reference, candidate
model = reference.Model(16, 8).eval()
new = candidate.ModelNew(16, 8).eval()
new.load_state_dict(model.state_dict(), strict=True)
x = torch.randn(5, 16)
with torch.inference_mode():
    right = all(torch.allclose(one(x), model(x), atol=1e-6) for one in (new, copy.deepcopy(new), pickle.loads(pickle.dumps(new))))
new(x).sum().backward()
traced = torch.compile(new, backend="eager", fullgraph=True)
print(json.dumps({"right": right, "traced": torch.allclose(traced(x), model(x), atol=1e-6),
                  "gradient": new.weight.grad is not None, "keys": list(new.state_dict()), "graphs": len(new._graphs)}))
"""

ON_A_GPU = """
import json, torch, reference, candidate
torch.backends.cuda.matmul.allow_tf32 = False
found = {}
model = reference.Model(16, 8).cuda().eval()
new = candidate.ModelNew(16, 8).cuda().eval()
new.load_state_dict(model.state_dict(), strict=True)

def same(x):
    return bool(torch.equal(new(x), model(x)) or torch.allclose(new(x), model(x), atol=1e-5))

def replayed():
    return sum(isinstance(entry, tuple) for entry in new._graphs.values())

for context in (torch.no_grad, torch.inference_mode):
    with context():
        found[context.__name__] = all(same(torch.randn(rows, 16, device="cuda")) for _ in range(4) for rows in (3, 5, 7))
found["graphs"] = replayed()
with torch.no_grad():
    x = torch.randn(5, 16, device="cuda")
    first = new(x)
    kept = first.clone()
    new(x + 1)
    found["outputs_last"] = torch.equal(first, kept)
    model.weight.mul_(2); new.weight.mul_(2)
    found["changed_in_place"] = same(x)
    fresh = torch.nn.Parameter(torch.randn_like(model.weight))
    model.weight, new.weight = fresh, torch.nn.Parameter(fresh.detach().clone())
    found["replaced"] = all(same(x) for _ in range(3))
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        found["other_stream"] = all(same(x) for _ in range(3))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    before = replayed()
    with torch.cuda.graph(graph):
        inside = new(x)
    x.copy_(torch.randn_like(x))
    graph.replay()
    found["inside_a_capture"] = torch.allclose(inside, model(x), atol=1e-5) and replayed() == before
    many = [same(torch.randn(rows, 16, device="cuda")) for rows in range(20, 70) for _ in range(3)]
    found["more_sizes_than_graphs"] = all(many) and len(new._graphs) <= candidate.MOST_GRAPHS
y = torch.randn(5, 16, device="cuda", requires_grad=True)
new(y).sum().backward()
found["gradient"] = y.grad is not None
print(json.dumps(found))
"""


def run(folder: Path) -> dict[str, object]:
    (folder / "reference.py").write_text(task_text(NAME))
    (folder / "candidate.py").write_text(cuda_graph_source(task_text(NAME), NAME))
    return run_program(folder, USED)


def test_it_is_a_file_of_its_own() -> None:
    source = cuda_graph_source(task_text(NAME), NAME)
    ast.parse(source)
    assert "kernelbench_tasks" not in source
    assert cut(source, "ModelNew").text


def test_a_graph_is_dropped_when_a_tensor_or_a_part_is_exchanged() -> None:
    reference = "import torch\nfrom torch import nn\n\n\nclass Model(nn.Module):\n"
    reference += "    def __init__(self):\n        super().__init__()\n        self.inner = nn.Sequential(nn.Linear(3, 3))\n\n"
    reference += "    def forward(self, x):\n        return self.inner(x)\n"
    names: dict[str, Any] = {"__name__": "candidate"}
    exec(cuda_graph_source(reference, "parts"), names)
    module = names["ModelNew"]()
    new = nn.Linear(3, 3)
    changes: list[Callable[[], None]] = [
        lambda: setattr(module.inner[0], "weight", nn.Parameter(torch.zeros(3, 3))),
        lambda: module.inner.__setitem__(0, new),
        lambda: setattr(module, "inner", nn.Sequential(new, nn.Linear(3, 3))),
        lambda: setattr(module.inner[1], "bias", None),
        lambda: module.inner.append(nn.ReLU()),
        lambda: module.inner.__setitem__(2, nn.GELU()),
        lambda: module.inner[1].__dict__.update(_parameters=dict(nn.Linear(3, 3)._parameters)),
    ]
    with torch.no_grad():
        assert names["may_replay"](module, ())
        for change in changes:
            module._graphs["kept"] = True
            assert names["may_replay"](module, ()) and module._graphs
            change()
            assert names["may_replay"](module, ()) and not module._graphs


def test_arguments_keep_their_names() -> None:
    """An attention's `key` was once what its graph was known by."""
    assert not names_bound_in_calls(cuda_graph_source(task_text(NAME), NAME))


@pytest.mark.slow
def test_a_reference_that_uses_its_names_gives_them_up(tmp_path: Path) -> None:
    text = task_text(NAME).replace("import torch\n", "import torch\n\n\ndef copied(x):\n    return x\n", 1)
    text = text.replace("def forward(self, x):\n", "def forward(self, x):\n        x = copied(x)\n", 1)
    source = cuda_graph_source(text, NAME)
    assert "x = copied_of_reference(x)" in source and "return copied(result)" in source
    (tmp_path / "reference.py").write_text(text)
    (tmp_path / "candidate.py").write_text(source)
    answer = run_program(tmp_path, USED)
    assert answer["right"] and answer["graded"]


def test_without_a_gpu_it_is_the_reference(tmp_path: Path) -> None:
    answer = run(tmp_path)
    assert answer["right"] and answer["graded"]


@pytest.mark.gpu
def test_on_a_gpu_it_replays_what_it_captured_for_each_size(tmp_path: Path) -> None:
    answer = run(tmp_path)
    assert answer == {"right": True, "graphs": 1, "graded": True}, (
        "graphs of weights that are elsewhere now are gone"
    )


@pytest.mark.gpu
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["softmax", "matmul_bias_relu", "layernorm_relu_add"])
def test_the_referee_accepts_it(tmp_path: Path, name: str) -> None:
    with Referee("cuda", work_dir=tmp_path) as referee:
        verdict = referee.evaluate(
            TaskSource(name, task_text(name)),
            CandidateSource(cuda_graph_source(task_text(name), name), "compiler", "CUDA graph"),
            deadline_s=250.0,
        )
    assert verdict.verdict == "accepted", verdict.reason


@pytest.mark.slow
@pytest.mark.parametrize(("source", "root"), [(task_text(NAME), "Model"), (MEMBER, "ModelNew")])
def test_without_a_gpu_and_where_a_graph_may_not_be_it_is_the_module(
    tmp_path: Path, source: str, root: str
) -> None:
    made = cuda_graph_source(source, NAME, root)
    assert made == cuda_graph_source(source, NAME, root)
    assert "kernelbench_tasks" not in made
    assert cut(made, "ModelNew").text
    (tmp_path / "reference.py").write_text(task_text(NAME))
    (tmp_path / "candidate.py").write_text(made)
    answer = run_program(tmp_path, WITHOUT_A_GPU)
    assert answer == {
        "right": True,
        "traced": True,
        "gradient": True,
        "keys": ["weight", "bias"],
        "graphs": 0,
    }


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (MEMBER.replace("x: torch.Tensor", "*inputs"), "variable number"),
        (MEMBER.replace("return torch", "torch.cuda.graph(None)\n        return torch"), "graphs itself"),
        (MEMBER.replace("class ModelNew", "class Other"), "ModelNew"),
    ],
)
def test_what_cannot_be_replayed_is_told(source: str, why: str) -> None:
    ast.parse(source)
    with pytest.raises(ProposalFailed, match=why):
        cuda_graph_source(source, NAME, "ModelNew")


@pytest.mark.gpu
@pytest.mark.parametrize(("source", "root"), [(task_text(NAME), "Model"), (MEMBER, "ModelNew")])
def test_a_replay_is_the_module(tmp_path: Path, source: str, root: str) -> None:
    (tmp_path / "reference.py").write_text(task_text(NAME))
    (tmp_path / "candidate.py").write_text(cuda_graph_source(source, NAME, root))
    answer = run_program(tmp_path, ON_A_GPU)
    assert answer.pop("graphs") == 3, "three sizes, and the same graphs under inference_mode"
    assert all(answer.values()), json.dumps(answer)


#: Runs the file's own code with a stand-in for each thing of CUDA that it asks: a graph is a recording of the module's own call.
WITH_A_STAND_IN = """
import contextlib, json, threading, torch, candidate

class Stream:
    def wait_stream(self, other): pass

class Graph:
    def replay(self):
        replays.append(threading.get_ident())
        self.again()

@contextlib.contextmanager
def capturing(graph, capture_error_mode):
    assert capture_error_mode == "thread_local" and not torch.is_grad_enabled()
    at_once.append(1)
    assert len(at_once) == 1, "one capture at a time"
    captures.append(graph)
    yield
    at_once.pop()

capturing_now, stream, at_once, captures, replays = [False], [0], [], [], []
torch.cuda.is_current_stream_capturing = lambda: capturing_now[0]
torch.cuda.current_stream = torch.cuda.Stream = lambda *_: Stream()
torch.cuda.stream = lambda _: contextlib.nullcontext()
torch.cuda.CUDAGraph, torch.cuda.graph = Graph, capturing
torch.cuda.memory_reserved, torch.cuda.empty_cache = (lambda: 0), (lambda: None)
candidate.raw_stream = lambda _: stream[0]
candidate.may_replay = lambda *_: not torch.is_grad_enabled()

real = candidate.captured
def captured(forward, inputs, most):
    found = real(forward, inputs, most)
    if found:
        targets, graph, result, held = found
        graph.again = lambda: result.copy_(forward(*targets))
    return found
candidate.captured = captured

new = candidate.ModelNew(16, 8).eval()
found = {}
with torch.no_grad():
    x = torch.randn(5, 16)
    def right(y=x):
        return bool(torch.allclose(new(y), torch.relu(y @ new.weight + new.bias), atol=1e-5))
    found["right"] = [right() for _ in range(3)]
    found["first_call_captures_nothing"] = len(captures) == 1 and len(replays) == 2
    kept = new(x); before = kept.clone(); new(x + 1)
    found["outputs_last"] = torch.equal(kept, before)
    capturing_now[0] = True
    count = len(replays)
    found["inside_a_capture_as_it_is"] = right() and len(replays) == count
    capturing_now[0] = False
    stream[0] = 7
    count = len(captures)
    found["another_stream"] = all(right() for _ in range(3)) and len(captures) == count + 1
    stream[0] = 0
    count = len(captures)
    def other():
        with torch.no_grad():
            found["another_thread"] = all(right() for _ in range(3)) and len(captures) == count + 1
    thread = threading.Thread(target=other); thread.start(); thread.join()
    candidate.CAPTURING.acquire()
    count, y = len(captures), torch.randn(6, 16)
    found["busy_runs_as_it_is"] = all(right(y) for _ in range(3)) and len(captures) == count
    candidate.CAPTURING.release()
    found["and_captures_later"] = right(y) and len(captures) == count + 1
    held = new._bytes
    found["bytes"] = held
    candidate.MOST_BYTES = held + 200
    count, y = len(captures), torch.randn(7, 16)
    found["no_room_runs_as_it_is"] = all(right(y) for _ in range(3)) and len(captures) == count and new._bytes == held
    new.register_buffer("count", torch.zeros(1))
    plain = candidate.Launched.forward
    def writing(self, x):
        self.count.add_(1)
        return plain(self, x)
    candidate.Launched.forward = writing
    new._graphs, new._bytes = {}, 0
    candidate.MOST_BYTES = 1 << 30
    count = len(captures)
    for _ in range(4):
        new(x)
    found["writes"] = float(new.count)
    found["what_writes_is_never_captured"] = len(captures) == count
    candidate.Launched.forward = plain
    new._graphs = {}
    for rows in range(1, 60):
        for _ in range(3):
            right(torch.randn(rows, 16))
    found["most_graphs"] = len(new._graphs) <= candidate.MOST_GRAPHS
    new.double()
    found["moved"] = (len(new._graphs), new._bytes)
print(json.dumps(found))
"""


def test_what_it_captures_and_when_it_runs_as_it_is(tmp_path: Path) -> None:
    """The file's logic without a GPU: threads, streams, other captures, memory, and modules that write into themselves."""
    (tmp_path / "candidate.py").write_text(cuda_graph_source(MEMBER, NAME, "ModelNew"))
    answer = run_program(tmp_path, WITH_A_STAND_IN)
    assert answer.pop("right") == [True] * 3
    # 3 graphs of 5 rows (two streams, two threads) and one of 6: 16 inputs and 8 outputs a row, 4 bytes each.
    assert answer.pop("bytes") == (3 * 5 + 6) * 24 * 4
    assert answer.pop("writes") == 4.0, "as often as it was called"
    assert answer.pop("moved") == [0, 0]
    assert all(answer.values()), json.dumps(answer)
