"""A candidate from the library: the user's own class, the kernel, and nothing of this project."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import pytest
import torch

from agent.library.assemble import CannotAssemble, assemble
from agent.library.catalog import EXEMPLARS, Exemplar
from agent.library.find import Match
from kernelbench_tasks import catalog

BY_NAME = {exemplar.name: exemplar for exemplar in EXEMPLARS}

REFERENCE = '''"""A "quoted" docstring with a \\\\ in it."""
from __future__ import annotations

import torch
import torch.nn as nn
import torch.nn.functional as F
from kernelbench_tasks import Dim

DIMS = {"rows": Dim(1, 64), "cols": Dim(8, 64)}
SLOPE = 1.0  # a constant of the user's


class Block(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.norm = nn.LayerNorm(cols)


class Model(nn.Module):
    """The user's."""

    def __init__(self, cols, depth=2):
        super(Model, self).__init__()
        self.blocks = nn.ModuleList([Block(cols) for _ in range(depth)])

    def forward(self, r, x, scale=None):
        text = """
DIMS = 3
"""
        y = F.relu(self.blocks[1].norm(x)) * SLOPE + r
        return y if scale is None else y * scale


def get_inputs(rows=3, cols=33):
    return [torch.randn(rows, cols), torch.randn(rows, cols)]


def get_init_inputs(cols=33):
    return [cols]


if __name__ == "__main__":
    raise SystemExit("the main block must not come along")
'''


def match(
    exemplar: Exemplar,
    tensors: Mapping[str, tuple[str, str]],
    arguments: tuple[str, ...] = ("r", "x"),
    open_ended: bool = True,
) -> Match:
    numbers = {role: 1e-5 for role, kind in exemplar.roles.items() if kind == "constant"}
    return Match(exemplar, tensors, numbers, arguments, open_ended)


LAYERNORM = match(
    BY_NAME["layernorm_relu_add"],
    {
        "x": ("input", "1"),
        "residual": ("input", "0"),
        "weight": ("parameter", "blocks.1.norm.weight"),
        "bias": ("parameter", "blocks.1.norm.bias"),
    },
)


def load(source: str, folder: Path) -> ModuleType:
    path = folder / "assembled.py"
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("assembled", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def candidate(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    return load(assemble(LAYERNORM, "cpu", REFERENCE), tmp_path_factory.mktemp("candidate"))


def test_the_candidate_stands_alone() -> None:
    for exemplar in EXEMPLARS:
        tensors = {
            role: ("input", "0") if kind == "full" else ("parameter", "w")
            for role, kind in exemplar.roles.items()
            if kind != "constant"
        }
        for device in exemplar.devices:
            source = assemble(match(exemplar, tensors), device, REFERENCE)
            imported = {
                (node.module if isinstance(node, ast.ImportFrom) else node.names[0].name).split(".")[0]  # type: ignore[union-attr]
                for node in ast.walk(ast.parse(source))
                if isinstance(node, (ast.Import, ast.ImportFrom))
            }
            assert imported <= {"torch", "triton", "ctypes", "struct", "sys", "collections", "__future__"}
            assert "get_inputs" not in source
            assert "must not come along" not in source
            assert "cpp_source(" not in source


def test_the_same_match_gives_the_same_text() -> None:
    assert assemble(LAYERNORM, "cpu", REFERENCE) == assemble(LAYERNORM, "cpu", REFERENCE)


def test_the_users_class_is_carried_word_for_word() -> None:
    source = assemble(LAYERNORM, "cpu", REFERENCE)
    start, end = REFERENCE.index("SLOPE = 1.0"), REFERENCE.index("def get_inputs")
    assert REFERENCE[start:end].strip() in source


def test_weights_load_strictly_and_the_kernel_runs(
    candidate: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model, new = candidate.Model(33), candidate.ModelNew(33, depth=2)
    for tensor in model.state_dict().values():
        tensor.uniform_(-1, 1)
    new.load_state_dict(model.state_dict(), strict=True)
    r, x = torch.randn(5, 33), torch.randn(5, 33)
    with torch.no_grad():
        expected = model(r, x)
        monkeypatch.setattr(candidate.Model, "forward", None)  # whoever calls the reference now fails
        torch.testing.assert_close(new(r, x), expected)


def test_outside_its_domain_the_reference_runs(candidate: ModuleType) -> None:
    torch.manual_seed(0)
    model, new = candidate.Model(33), candidate.ModelNew(33)
    new.load_state_dict(model.state_dict())
    r, x = torch.randn(5, 33), torch.randn(5, 33)
    torch.testing.assert_close(new(r, x), model(r, x))
    new(r, x).sum().backward()
    assert new.blocks[1].norm.weight.grad is not None
    with torch.no_grad():
        torch.testing.assert_close(new(r, x, scale=2.0), model(r, x, scale=2.0), rtol=0, atol=0)
        torch.testing.assert_close(new(r[:1], x), model(r[:1], x), rtol=0, atol=0)
        new.double(), model.double()
        torch.testing.assert_close(new(r.double(), x.double()), model(r.double(), x.double()), rtol=0, atol=0)


def test_strided_inputs_and_rows_of_any_shape(candidate: ModuleType) -> None:
    torch.manual_seed(0)
    model, new = candidate.Model(33), candidate.ModelNew(33)
    new.load_state_dict(model.state_dict())
    wide = torch.randn(7, 99)
    cases = [
        (torch.randn(33, 5).T, torch.randn(33, 5).T),
        (wide[:, 1:34], wide[:, 40:73]),
        (torch.randn(33), torch.randn(33)),
        (torch.randn(2, 3, 4, 33), torch.randn(2, 3, 4, 33)),
        (torch.randn(0, 33), torch.randn(0, 33)),
        (torch.randn(1, 33).expand(6, 33), torch.randn(6, 33)),
    ]
    with torch.no_grad():
        for r, x in cases:
            expected = model(r, x)
            output = new(r, x)
            torch.testing.assert_close(output, expected)
            assert output.stride() == expected.stride()


def test_outputs_are_fresh(candidate: ModuleType) -> None:
    """Large outputs use memory again, but never memory that anybody can still see."""
    model = candidate.ModelNew(1024)
    with torch.no_grad():
        r = torch.randn(256, 1024)
        first = model(r, r)
        kept_row, copy = first[3], first[3].clone()
        storage, stored = model(r + 1, r).untyped_storage(), None
        address = first.data_ptr()
        del first
        later = [model(r * k, r) for k in range(2, 8)]
        assert torch.equal(kept_row, copy)
        assert len({tensor.data_ptr() for tensor in later}) == len(later)
        assert not {address, storage.data_ptr()} & {tensor.data_ptr() for tensor in later}
        del kept_row, storage, stored
        assert address in {model(r, r).data_ptr() for _ in range(10)}


@pytest.mark.parametrize(
    ("reference", "complaint"),
    [
        ("class Model:\n", "does not parse"),
        (REFERENCE + "\ndef library_layernorm_relu_add(): pass\n", "already uses"),
        (REFERENCE.replace("SLOPE", "struct"), "already uses"),
        (REFERENCE + "\nimport numpy as torch\n", "already uses"),
        ("(" * 5000, "does not parse"),
        ("x = 1\n" * 100_000, "too long"),
    ],
)
def test_a_reference_that_cannot_be_carried_is_refused(reference: str, complaint: str) -> None:
    with pytest.raises(CannotAssemble, match=complaint):
        assemble(LAYERNORM, "cpu", reference)


@pytest.mark.parametrize("name", ["self", "class", "extra", "library_layernorm_relu_add"])
def test_an_argument_that_cannot_be_written_is_refused(name: str) -> None:
    with pytest.raises(CannotAssemble):
        assemble(match(LAYERNORM.exemplar, LAYERNORM.tensors, ("r", name)), "cpu", REFERENCE)


def test_every_task_of_the_library_can_be_carried() -> None:
    for exemplar in EXEMPLARS:
        tensors = {role: ("input", "0") for role, kind in exemplar.roles.items() if kind != "constant"}
        task = catalog.load(exemplar.task)
        ast.parse(assemble(match(exemplar, tensors, ("a", "b"), open_ended=False), "cpu", task.source))
