"""Operations of a captured graph that the library computes: which are rewritten, and that the candidate computes the same."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from agent.compiler.inductor import assemble
from agent.kernels.writing import with_library
from evaluator.integrity.static import analyze
from tests.agent.compiler import extraction
from tests.agent.compiler.extraction import PROGRAM, ROOT, capture_text, run_program

REWRITING = ROOT / "agent" / "kernels" / "rewriting.py"
REFERENCE = """
import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3)
        self.apart = nn.Conv2d(8, 16, (3, 5), stride=2, padding=1, groups=8, bias=False)
        self.up = nn.ConvTranspose2d(16, 4, 3, stride=2, output_padding=1)

    def forward(self, x, rows, q, k):
        scores = (q @ k.transpose(-2, -1)) * 0.25
        scores = scores.masked_fill(torch.ones(q.shape[2], k.shape[2]).tril() == 0, float("-inf"))
        attended = F.dropout(F.softmax(scores, dim=-1), 0.1, self.training) @ k + F.scaled_dot_product_attention(q, k, k)
        x = F.max_pool2d(torch.relu(self.first(x)), 4, 1, 1)
        x = F.max_pool2d(self.up(self.apart(x)), 2)
        x = F.avg_pool2d(x, 6, 2, 3, count_include_pad=False)
        return x, attended, torch.log_softmax(rows, -1), torch.softmax(rows * 2, -1)


def get_inputs():
    return [torch.randn(2, 3, 44, 36), torch.randn(2, 9000), *torch.randn(2, 2, 2, 260, 16)]


def get_init_inputs():
    return []
"""

RUN = """
import json, torch, reference, candidate
torch.manual_seed(0)
model, new = reference.Model().eval(), candidate.ModelNew().eval()
new.load_state_dict(model.state_dict(), strict=True)
reached, code = [], candidate.call
candidate.call = lambda given: (reached.append(1), code(given))[1]
with torch.no_grad():
    given = reference.get_inputs()
    same = [torch.allclose(a, b, atol=1e-5, rtol=1e-4) for a, b in zip(new(*given), model(*given), strict=True)]
print(json.dumps({"reached": len(reached), "same": same}))
"""


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("rewriting")
    data = capture_text(folder / "capture", REFERENCE, {}, files={"rewriting.py": REWRITING.read_text()})
    found: dict[str, Any] = json.loads(data)
    return found


def test_what_the_library_computes_is_called(captured: dict[str, Any]) -> None:
    called = re.findall(r"torch\.ops\.kernelwright\.(\w+)\.default\(", captured["library"])
    assert sorted(called) == ["attention"] * 2 + ["convolution"] * 3 + ["max_pool", "mean_pool", "softmax"], (
        "small windows, and rows that can be fused, stay with the compiler"
    )
    assert "kernelwright" not in captured["module"]


def test_it_stands_alone_beside_names_of_the_reference(captured: dict[str, Any]) -> None:
    text, operations = with_library(captured["library"])
    assert operations == ("attention", "convolution", "max_pool", "mean_pool", "softmax")
    compile(assemble(json.dumps(captured), REFERENCE, "name", changed=lambda _: text), "candidate", "exec")


def test_the_referee_s_analysis_has_nothing_to_warn_of(captured: dict[str, Any]) -> None:
    source = assemble(json.dumps(captured), REFERENCE, "name", changed=lambda module: with_library(module)[0])
    assert [one for one in analyze(source).findings if one[1] not in ("info",)] == []


MEANS = """
import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.plain = nn.Conv2d(3, 8, 3, padding=1)
        self.strided = nn.Conv2d(3, 8, (4, 3), stride=(2, 1), padding=(0, 2), groups=1)
        self.grouped = nn.Conv1d(4, 8, 3, groups=2)
        self.pixels = nn.Conv2d(3, 5, 1)
        self.up = nn.ConvTranspose3d(3, 4, 3, stride=2, padding=1, output_padding=1)
        self.wide = nn.ConvTranspose2d(3, 4, (5, 4), stride=(2, 1), padding=(2, 0), bias=False)
        self.kept = nn.Conv2d(3, 8, 3)

    def forward(self, x, line, volume):
        twice = self.kept(x)
        return (
            F.avg_pool2d(self.plain(x), 4),
            F.avg_pool2d(self.strided(x), (2, 3), (2, 2)),
            F.avg_pool1d(self.grouped(line), 3),
            F.avg_pool2d(self.pixels(torch.relu(x)), 2),
            F.avg_pool3d(self.up(volume), 2),
            F.avg_pool2d(self.wide(x), (4, 3), (4, 2)),
            F.avg_pool2d(twice, 2) + twice.mean(),
            F.avg_pool2d(self.kept(x), 3, 1),
            F.avg_pool2d(self.plain(x), 2, padding=1),
            F.avg_pool2d(self.plain(x), 5, ceil_mode=True),
        )


def get_inputs():
    return [torch.randn(2, 3, 22, 23), torch.randn(2, 4, 17), torch.randn(2, 3, 5, 6, 7)]


def get_init_inputs():
    return []
"""


def test_a_mean_of_a_convolution_s_output_is_a_convolution(tmp_path: Path) -> None:
    data = capture_text(tmp_path / "capture", MEANS, {}, files={"rewriting.py": REWRITING.read_text()})
    found = json.loads(data)
    assert found["library_fault"] == ""
    assert found["module"].count("aten.avg_pool") == 0
    called = found["library"].count("torch.ops.kernelwright.convolution.default(")
    assert called == 10
    # Six are merged, of which the one of single pixels still takes means; the others stay as they are.
    outs = re.findall(r"assert_size_stride\((buf\d+), \((2, \d+, [\d, ]+)\)", found["library"])
    sizes = {size for _, size in outs}
    assert {"2, 8, 5, 5", "2, 8, 5, 12", "2, 8, 5", "2, 5, 11, 11", "2, 4, 11, 12"} <= sizes
    assert {"2, 8, 20, 21", "2, 8, 22, 23"} <= sizes
    source = assemble(data, MEANS, "means", changed=lambda module: with_library(module)[0])
    (tmp_path / "reference.py").write_text(MEANS)
    (tmp_path / "candidate.py").write_text(source)
    assert run_program(tmp_path, RUN) == {"reached": 1, "same": [True] * 10}


AFTER = """
import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 20, 3, padding=1)
        self.shift = nn.Parameter(torch.randn(20, 1, 1))
        self.up = nn.ConvTranspose3d(3, 4, 3, stride=2, padding=1, output_padding=1)
        self.twice = nn.Conv1d(4, 6, 3, bias=False)
        self.joined = nn.Conv1d(4, 6, 3)

    def forward(self, x, line, volume, added):
        twice = torch.relu(self.twice(line))
        up = self.up(volume) + added
        return (
            F.gelu(F.leaky_relu(self.first(x), 0.1) * self.shift + self.shift),
            up * F.hardswish(up),
            twice,
            twice * 2 + twice.mean(),
            F.max_pool2d(F.mish(torch.clamp(self.first(x), -0.5)), 2),
            F.silu(self.joined(line)).sum(-1),
        )


def get_inputs():
    return [torch.randn(2, 3, 12, 13), torch.randn(2, 4, 17), torch.randn(2, 3, 5, 6, 7), torch.randn(2, 4, 10, 12, 14)]


def get_init_inputs():
    return []
"""

INTERPRETED = """
import os
os.environ["TRITON_INTERPRET"] = "1"
from evaluator.roles import interpreted
interpreted.prepare()
"""

# The kernels themselves, with an image whose values no scale can hold.
KERNELS = """
import copy, json, torch, candidate, reference
torch.manual_seed(0)
model = reference.Model().eval()
exact = copy.deepcopy(model).double()
x, line, volume, added = reference.get_inputs()
x[1, 0, 3, 4], volume[1, 2, 3, 3, 3] = float("inf"), float("nan")
shift = model.shift.detach().view(-1)
errors = []
with torch.no_grad():
    wanted = exact(*(one.double() for one in (x, line, volume, added)))
    for name, change, used, operands in (
        ("first", candidate.convolution, model.first, [shift, None]),
        ("up", candidate.transposed_convolution, model.up, [added, None]),
    ):
        want = wanted[0 if name == "first" else 1]
        after = candidate.After(getattr(candidate, FUNCTIONS[name]), *operands)
        out = torch.empty_like(want, dtype=torch.float32)
        axes = want.dim() - 2
        more = [[1] * axes] if name == "first" else []
        change(x if name == "first" else volume, used.weight, used.bias, [used.stride[0]] * axes, [1] * axes, *more, out, 2, after)
        same = torch.equal(out.isnan(), want.isnan()) and torch.equal(out.isinf(), want.isinf())
        errors.append((out - want)[want.isfinite()].abs().max().item() if same else 1.0)
print(json.dumps({"errors": errors}))
"""


def test_pointwise_operations_join_a_convolution_where_the_compiler_would_read_it_again(
    tmp_path: Path,
) -> None:
    data = capture_text(tmp_path / "capture", AFTER, {}, files={"rewriting.py": REWRITING.read_text()})
    found = json.loads(data)
    assert found["library_fault"] == ""
    text, _ = with_library(found["library"])
    calls = re.findall(r"= library_convolution\((.*)\)", text)
    ends = [call.split(", ")[-4:] for call in calls]
    functions = {
        name: body.split("\n\n")[0]
        for name, body in (
            one.split("(x, a, b):", 1) for one in text.split("def ") if one.startswith("_after")
        )
    }
    joined = {name: [end[1] for end in ends if end[1] == name] for name in functions}
    assert sorted(map(len, joined.values())) == [1, 1, 1, 1], (
        "two that share nothing, relu, and one before a pool"
    )
    assert sum(end[1] == "None" and end[0] == "None" for end in ends) == 1, (
        "a sum's bias and silu join the sum"
    )
    first = next(name for name, body in functions.items() if "tl.erf" in body)
    up = next(name for name, body in functions.items() if "+ 3.0" in body)
    source = assemble(data, AFTER, "after", changed=lambda module: with_library(module)[0])
    assert [one for one in analyze(source).findings if one[1] != "info"] == []
    (tmp_path / "reference.py").write_text(AFTER)
    (tmp_path / "candidate.py").write_text(source)
    assert run_program(tmp_path, INTERPRETED + RUN) == {"reached": 1, "same": [True] * 6}
    named = f"FUNCTIONS = {{'first': {first!r}, 'up': {up!r}}}\n"
    errors = run_program(tmp_path, INTERPRETED + named + KERNELS)["errors"]
    assert max(errors) < 5e-6, errors


SMALL = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, factor=3):
        super().__init__()
        self.layer, self.factor = nn.Conv1d(4, 5, 3), factor

    def forward(self, x):
        return self.layer(x) * self.factor


def get_inputs():
    return [torch.randn(SIZES)]


def get_init_inputs(factor=3):
    return [factor]
"""


def captured_of(folder: Path, sizes: str, dims: dict[str, Any], rewriting: str) -> dict[str, Any]:
    reference = SMALL.replace("SIZES", sizes)
    found: dict[str, Any] = json.loads(
        capture_text(folder, reference, dims, files={"rewriting.py": rewriting})
    )
    return found


def test_a_second_attempt_with_fewer_symbols_rewrites_too(tmp_path: Path) -> None:
    """A factor that no tensor tells cannot stay a symbol."""
    dims = {"factor": {"min": 2, "max": 9, "multiple_of": 1, "default": 3}}
    found = captured_of(tmp_path / "a", "2, 4, 20", dims, REWRITING.read_text())
    assert (found["library_fault"], found["library"].count("kernelwright.convolution.default(")) == ("", 1)


def test_sizes_that_vary_at_run_time_are_symbols_in_one_capture_and_numbers_in_the_other(
    tmp_path: Path,
) -> None:
    dims = {name: {"min": 1, "max": 99, "multiple_of": 1, "default": 20} for name in ("batch", "factor")}
    reference = SMALL.replace("get_inputs()", "get_inputs(batch=20)").replace("SIZES", "batch, 4, 20")
    files = {"rewriting.py": REWRITING.read_text()}
    found = json.loads(capture_text(tmp_path / "a", reference, dims, files=files, own={"batch": 30}))
    assert "made_with == {'factor': 20}" in found["conditions"], "the configuration is that of the module"
    assert [len(one["sizes"]) for one in (found, found["own"])] == [1, 0]
    assert "(30, 4, 20,)" in found["own"]["expected"][0]
    assert all("kernelwright.convolution.default(" in one["library"] for one in (found, found["own"]))
    assert "own" not in json.loads(capture_text(tmp_path / "b", reference, dims)), "no library, no use"


def test_a_module_for_which_symbols_take_too_long_is_captured_at_its_own_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = PROGRAM.read_text().replace("SYMBOLS_S = 100", "SYMBOLS_S = 1")
    slow = slow.replace("    env = ShapeEnv()\n", "    env = ShapeEnv()\n    while symbolic:\n        pass\n")
    monkeypatch.setattr(extraction, "PROGRAM", tmp_path / PROGRAM.name)
    extraction.PROGRAM.write_text(slow)
    dims = {"batch": {"min": 1, "max": 99, "multiple_of": 1, "default": 20}}
    reference = SMALL.replace("get_inputs()", "get_inputs(batch=20)").replace("SIZES", "batch, 4, 20")
    for files in ({"rewriting.py": REWRITING.read_text()}, {}):
        found = json.loads(capture_text(tmp_path / str(len(files)), reference, dims, files=files))
        assert (found["sizes"], "own" in found) == ([], False)
        assert "(20, 4, 20,)" in found["expected"][0]


def test_a_convolution_without_a_batch_stays_with_the_compiler(tmp_path: Path) -> None:
    found = captured_of(tmp_path / "a", "4, 20", {}, REWRITING.read_text())
    assert (found["library_fault"], found["library"]) == ("", "")
    assert found["module"]


def test_a_fault_of_the_rewrite_costs_the_compiler_s_code_nothing(tmp_path: Path) -> None:
    planted = "def rewrite(graph):\n    raise ValueError('planted')\n"
    found = captured_of(tmp_path / "a", "2, 4, 20", {}, planted)
    assert (found["library_fault"], found["library"]) == ("ValueError: planted", "")
    assert found["module"]


@pytest.mark.slow
def test_it_computes_what_the_reference_does(captured: dict[str, Any], tmp_path: Path) -> None:
    source = assemble(json.dumps(captured), REFERENCE, "name", changed=lambda module: with_library(module)[0])
    (tmp_path / "reference.py").write_text(REFERENCE)
    (tmp_path / "candidate.py").write_text(source)
    assert run_program(tmp_path, INTERPRETED + RUN) == {"reached": 1, "same": [True] * 4}
