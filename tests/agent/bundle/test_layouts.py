"""What the delivered file makes of inputs and weights that lie in memory otherwise than those that were judged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

from agent.candidates import Candidate
from tests.agent.bundle.building import MEMBER, TASK, imported, inputs, optimized_text, ran, right

# Reads the memory of its weights as it lies, as a kernel does.
RAW = MEMBER.replace(
    "self.packed = self.weight * self.factor",
    "raw = torch.as_strided(self.weight.detach(), (self.weight.numel(),), (1,))\n            self.packed = raw * self.factor",
)


@pytest.fixture(scope="module")
def optimized(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    return imported(tmp_path_factory.mktemp("optimized"), optimized_text())


@pytest.mark.parametrize(
    "make",
    [
        lambda: [torch.randn(1, 64).expand(32, 64), torch.randn(32, 64)],
        lambda: [torch.randn(64, 32).t(), torch.randn(32, 64)],
        lambda: [torch.randn(32 * 64).as_strided((32, 64), (32, 1)), torch.randn(32, 64)],
        lambda: [torch.randn(32, 128)[:, ::2], torch.randn(32, 64)],
        lambda: [torch.randn(64, 64)[::2], torch.randn(64, 64)[1::2]],
        lambda: [value[3:35].view(32, 64) for value in (torch.randn(40, 64), torch.randn(40, 64))],
        lambda: [torch.randn(1, 64), torch.randn(1, 64)],
        lambda: [torch.randn(0, 64), torch.randn(0, 64)],
        lambda: [torch.randn(32, 64), torch.randn(1, 64)],
        lambda: [torch.randn(64), torch.randn(32, 64)],
    ],
    ids="expanded transposed overlapping every-second rows-apart slices one none broadcast vector".split(),
)
def test_views_and_tiny_sizes_give_what_the_reference_gives(
    optimized: ModuleType, make: Callable[[], list[torch.Tensor]]
) -> None:
    model = optimized.ModelNew(64)
    with torch.no_grad():
        right(optimized, model, *make())
        same = make()[0]
        right(optimized, model, same, same)


def test_more_elements_than_32_bits_can_count_are_outside(optimized: ModuleType) -> None:
    """On the meta device: the guards read sizes alone, and answer before any memory is asked for."""
    dims = {
        "rows": {"min": 1, "max": 1 << 20, "multiple_of": 1, "default": 32},
        "cols": {"min": 8, "max": 8192, "multiple_of": 1, "default": 64},
    }
    text = optimized_text(dims=dims).replace("not tensor.is_cpu:", "False:", 1)
    folder = Path(str(optimized.__file__)).parent
    module = imported(folder, text)
    model = module.ModelNew(8192)
    for rows, inside in ((1 << 18, True), ((1 << 20) + 1, False)):
        x = torch.empty(rows, 8192, device="meta")
        said = module._choose(model._kw_dispatch.fixed, x, x)
        assert (type(said) is int) is inside, said
    assert x.numel() > 2**31


def test_conjugated_inputs_are_not_read_as_they_lie(tmp_path: Path) -> None:
    task = TASK.replace('Choice("float32", "float64")', 'Choice("complex64")').replace(
        'dtype="float32"', 'dtype="complex64"'
    )
    dims = {
        "rows": {"min": 1, "max": 4096, "multiple_of": 1, "default": 32},
        "cols": {"min": 8, "max": 1024, "multiple_of": 8, "default": 64},
        "dtype": {"choices": ["complex64"], "default": "complex64"},
    }
    module = imported(tmp_path, optimized_text(task=task, dims=dims))
    model = module.ModelNew(64)
    x = torch.randn(32, 64, dtype=torch.complex64)
    with torch.no_grad():
        assert ran(module, lambda: model(x, x))
        assert not ran(module, lambda: model(x.conj(), x))
        assert "conjugated" in model.kernelwright_explain(x.conj(), x)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(128)[::2],
        lambda: torch.randn(65)[1:],
        lambda: torch.randn(1).expand(64),
    ],
    ids=["every second", "unaligned", "expanded"],
)
def test_parameters_that_lie_otherwise_are_copied_for_the_kernels(
    tmp_path: Path, make: Callable[[], torch.Tensor]
) -> None:
    module = imported(tmp_path, optimized_text([Candidate(RAW, "llm", "reads raw memory")]))
    model = module.ModelNew(64)
    x, residual = inputs()
    with torch.no_grad():
        model.weight = torch.nn.Parameter(make())
        assert ran(module, lambda: model(x, residual))
        right(module, model, x, residual)


def test_a_member_that_packs_weights_itself_gets_none_that_lie_otherwise(tmp_path: Path) -> None:
    packs = RAW + (
        "\n    @classmethod\n    def from_reference(cls, reference):\n"
        "        made = cls(reference.weight.numel())\n"
        "        made.packed = torch.as_strided(reference.weight.detach(), (reference.weight.numel(),), (1,)) * 2.0\n"
        "        made.shift = reference.shift\n        return made\n"
    )
    module = imported(tmp_path, optimized_text([Candidate(packs, "llm", "packs raw memory")]))
    model = module.ModelNew(64)
    x, residual = inputs()
    with torch.no_grad():
        assert ran(module, lambda: model(x, residual))
        right(module, model, x, residual)
        model.weight = torch.nn.Parameter(torch.randn(128)[::2])
        assert not ran(module, lambda: model(x, residual))
        right(module, model, x, residual)
