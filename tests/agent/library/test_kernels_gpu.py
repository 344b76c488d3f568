"""The Triton kernels against float64, on a real GPU."""

from __future__ import annotations

import importlib
from collections.abc import Callable

import pytest
import torch

from tests.agent.library.test_kernels_cpu import NAMES, REFERENCES, arguments, contents, error

pytestmark = pytest.mark.gpu

COLUMNS = (1, 2, 8, 9, 31, 33, 64, 65, 127, 128, 129, 1000, 1023, 1025, 4099, 8192, 20001)
TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 1e-2, torch.float16: 2e-3}


def kernel(name: str) -> Callable[..., torch.Tensor | None]:
    module = importlib.import_module(f"agent.library.exemplars.gpu.{name}")
    function: Callable[..., torch.Tensor | None] = getattr(module, f"library_{name}")
    return function


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("kind", ["normal", "constant rows", "small spread on a large mean", "wide range"])
@pytest.mark.parametrize("name", NAMES)
def test_a_kernel_is_as_accurate_as_torch(name: str, kind: str, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    for cols in COLUMNS:
        rows = min(37, 40_000 // cols + 1)
        x, r = contents(kind, rows, cols).to("cuda", dtype), torch.randn(rows, cols).to("cuda", dtype)
        w, b = (torch.rand(cols) + 0.5).to("cuda", dtype), torch.randn(cols).to("cuda", dtype)
        exact = REFERENCES[name](x.double(), r.double(), w.double(), b.double())
        usual = REFERENCES[name](x, r, w, b)
        found = kernel(name)(*arguments(name, x, r, w, b))
        assert found is not None
        assert (found.shape, found.stride(), found.dtype) == (usual.shape, usual.stride(), usual.dtype)
        assert error(found, exact) <= max(TOLERANCE[dtype], 4 * error(usual, exact)), f"{rows} x {cols}"


@pytest.mark.parametrize("name", NAMES)
def test_layouts_and_what_is_refused(name: str) -> None:
    w, b = torch.rand(33, device="cuda") + 0.5, torch.randn(33, device="cuda")
    for x in (torch.randn(33, 5).T.cuda(), torch.randn(7, 99).cuda()[:, 2:35], torch.randn(2, 3, 33).cuda()):
        r = torch.randn(x.shape, device="cuda")
        usual = REFERENCES[name](x, r, w, b)
        torch.testing.assert_close(kernel(name)(*arguments(name, x, r, w, b)), usual, rtol=1e-5, atol=1e-5)
    x, r = torch.randn(4, 33, device="cuda"), torch.randn(4, 33, device="cuda")
    assert kernel(name)(*arguments(name, x.double(), r, w, b)) is None
    assert kernel(name)(*arguments(name, x.cpu(), r, w, b)) is None
    assert kernel(name)(*arguments(name, x.requires_grad_(), r, w, b)) is None


@pytest.mark.parametrize("name", NAMES)
def test_more_than_two_to_the_31_elements(name: str) -> None:
    """Offsets are 64 bits wide."""
    rows, cols = 2**19 + 1, 4099
    free, _ = torch.cuda.mem_get_info()
    if free < 6 * 2 * rows * cols:
        pytest.skip("needs some 30 GB of free GPU memory")
    x = torch.full((rows, cols), 0.5, device="cuda", dtype=torch.float16)
    x[-1, -3:] = 2.0
    w, b = (
        torch.ones(cols, device="cuda", dtype=torch.float16),
        torch.zeros(cols, device="cuda", dtype=torch.float16),
    )
    found = kernel(name)(*arguments(name, x, x, w, b))
    assert found is not None
    last = REFERENCES[name](x[-1:], x[-1:], w, b)
    torch.testing.assert_close(found[-1:], last, rtol=2e-3, atol=2e-3)
