"""The library's kernels on a GPU, through the functions that generated code calls."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def strict_float32() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False


def error(out: torch.Tensor, exact: torch.Tensor) -> float:
    return float((out - exact).norm() / exact.norm())


@pytest.mark.parametrize(("m", "k", "n"), [(2048, 2048, 2048), (1000, 8192, 3000), (512, 8192, 8192)])
def test_a_product_is_no_less_accurate_than_cublas(m: int, k: int, n: int) -> None:
    from agent.kernels.gpu import calls, products

    torch.manual_seed(0)
    a, b = torch.randn(m, k, device="cuda"), torch.randn(n, k, device="cuda").t()
    assert products.product_pays(1, m, n, k, a.device)
    exact = a.double() @ b.double()
    out = torch.empty(m, n, device="cuda")
    assert error(calls.library_mm(a, b, out=out), exact) <= error(a @ b, exact)


@pytest.mark.parametrize("transposed", [False, True])
def test_a_convolution_is_as_accurate_as_cudnn(transposed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from agent.kernels.gpu import calls

    torch.manual_seed(0)
    x, w = torch.randn(64, 64, 128, 128, device="cuda"), torch.randn(64, 64, 3, 3, device="cuda")
    run, stride = (F.conv_transpose2d, 2) if transposed else (F.conv2d, 1)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "convolution", lambda *_: pytest.fail("cuDNN was called"))
        out = calls.library_convolution(
            x, w, stride=(stride, stride), padding=(1, 1), dilation=(1, 1), transposed=transposed, output_padding=(0, 0),
            groups=1, bias=None,
        )  # fmt: skip
    exact = run(x[:4].double(), w.double(), None, stride, 1)
    assert out[:4].shape == exact.shape
    assert error(out[:4], exact) <= 2 * error(run(x, w, None, stride, 1)[:4], exact)
