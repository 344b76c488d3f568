"""The CPU kernels against float64: any size, any content, any layout, and what they refuse."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F

from agent.library.catalog import EXEMPLARS

Tensor = torch.Tensor
Reference = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]

REFERENCES: dict[str, Reference] = {
    "layernorm_relu_add": lambda x, r, w, b: F.relu(F.layer_norm(x, x.shape[-1:], w, b, 1e-5)) + r,
    "residual_add_rmsnorm": lambda x, r, w, b: F.rms_norm(x + r, x.shape[-1:], w, 1e-6),
    "rmsnorm": lambda x, r, w, b: F.rms_norm(x, x.shape[-1:], w, 1e-6),
    "softmax": lambda x, r, w, b: F.softmax(x, -1),
    "swiglu": lambda x, r, w, b: F.silu(x) * r,
    "bias_gelu": lambda x, r, w, b: F.gelu(x + b, approximate="tanh"),
    "row_sum": lambda x, r, w, b: x.sum(-1),
}
NAMES = [exemplar.name for exemplar in EXEMPLARS]

# Every vector width and count, one off on both sides, and rows longer than a cache.
COLUMNS = (1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 47, 64, 65, 100, 127, 128, 129, 191, 1000, 4099, 20001)


def arguments(name: str, x: Tensor, r: Tensor, w: Tensor, b: Tensor) -> list[object]:
    given: dict[str, list[object]] = {
        "layernorm_relu_add": [x, r, w, b, 1e-5],
        "residual_add_rmsnorm": [x, r, w, 1e-6],
        "rmsnorm": [x, w, 1e-6],
        "softmax": [x],
        "swiglu": [x, r],
        "bias_gelu": [x, b],
        "row_sum": [x, False],
    }
    return given[name]


@pytest.fixture(scope="module")
def kernels() -> dict[str, Callable[..., Tensor | None]]:
    """All kernels; building them takes some 2 s each the first time."""

    def build(name: str) -> Callable[..., Tensor | None]:
        module = importlib.import_module(f"agent.library.exemplars.cpu.{name}")
        function: Callable[..., Tensor | None] = getattr(module, f"library_{name}")
        return function

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(NAMES, pool.map(build, NAMES), strict=True))


def contents(kind: str, rows: int, cols: int) -> Tensor:
    x = torch.randn(rows, cols)
    match kind:
        case "constant rows":
            return (torch.randn(rows, 1) * 1000).expand(rows, cols).contiguous()
        case "small spread on a large mean":
            return x * 1e-2 + 1e4
        case "wide range":
            return x * torch.exp(4 * torch.randn(rows, cols))
        case "integers":
            return torch.randint(-3, 4, (rows, cols)).float()
    return x


def error(found: Tensor, expected: Tensor) -> float:
    """Largest deviation, relative to the largest value."""
    if found.numel() == 0:
        return 0.0
    return float((found.double() - expected).abs().max() / expected.abs().max().clamp_min(1e-30))


@pytest.mark.parametrize(
    "kind", ["normal", "constant rows", "small spread on a large mean", "wide range", "integers"]
)
@pytest.mark.parametrize("name", NAMES)
def test_a_kernel_is_as_accurate_as_torch(
    name: str, kind: str, kernels: dict[str, Callable[..., Tensor]]
) -> None:
    torch.manual_seed(1)
    for cols in COLUMNS:
        rows = min(37, 40_000 // cols + 1)
        x, r = contents(kind, rows, cols), torch.randn(rows, cols)
        w, b = torch.rand(cols) + 0.5, torch.randn(cols)
        exact = REFERENCES[name](x.double(), r.double(), w.double(), b.double())
        usual = REFERENCES[name](x, r, w, b)
        found = kernels[name](*arguments(name, x, r, w, b))
        assert (found.shape, found.stride(), found.dtype) == (usual.shape, usual.stride(), usual.dtype)
        assert error(found, exact) <= max(1e-6, 4 * error(usual, exact)), f"{rows} x {cols}"


@pytest.mark.parametrize("name", NAMES)
def test_many_rows_on_two_threads_and_past_the_cache(
    name: str, kernels: dict[str, Callable[..., Tensor]]
) -> None:
    """4.2 million elements: the output is streamed, and each thread has its own half."""
    torch.manual_seed(2)
    for rows, cols in ((14_001, 300), (60_001, 9), (517, 8111)):
        x, r = torch.randn(rows, cols), torch.randn(rows, cols)
        w, b = torch.rand(cols) + 0.5, torch.randn(cols)
        usual = REFERENCES[name](x, r, w, b)
        torch.testing.assert_close(kernels[name](*arguments(name, x, r, w, b)), usual, rtol=1e-4, atol=1e-4)


def test_a_constant_row_is_normalized_to_exactly_nothing(kernels: dict[str, Callable[..., Tensor]]) -> None:
    for value in (1e-3, 0.1, 3.7, 1e6 + 0.3, -12345.678):
        for cols in (8, 65, 1000, 8191):
            x, zero = torch.full((3, cols), value), torch.zeros(3, cols)
            y = kernels["layernorm_relu_add"](x, zero, torch.ones(cols), torch.zeros(cols), 1e-5)
            assert y.count_nonzero() == 0


@pytest.mark.parametrize("name", NAMES)
def test_nan_and_infinity_are_where_torch_has_them(
    name: str, kernels: dict[str, Callable[..., Tensor]]
) -> None:
    special = [
        [float("nan"), 1.0],
        [float("inf"), 1.0],
        [-float("inf"), 1.0],
        [90.0, -90.0],
        [1e30, 2e30],
        [0.0, -0.0],
    ]
    for cols in (10, 23, 70, 300):
        x = torch.ones(len(special), cols)
        x[:, -2:] = torch.tensor(special)
        r, w, b = torch.ones_like(x), torch.ones(cols), torch.zeros(cols)
        usual = REFERENCES[name](x, r, w, b)
        found = kernels[name](*arguments(name, x, r, w, b))
        assert torch.equal(found.isnan(), usual.isnan())
        assert torch.equal(found.isinf(), usual.isinf())
        torch.testing.assert_close(found, usual, rtol=1e-5, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("name", NAMES)
def test_layouts_and_empty_inputs(name: str, kernels: dict[str, Callable[..., Tensor]]) -> None:
    torch.manual_seed(3)
    w, b = torch.rand(66)[::2] + 0.5, torch.randn(33)
    for x in (
        torch.randn(33, 5).T,
        torch.randn(7, 99)[:, 2:35],
        torch.randn(33),
        torch.randn(2, 3, 33),
        torch.empty(0, 33),
    ):
        r = torch.randn(x.shape)
        usual = REFERENCES[name](x, r, w, b)
        found = kernels[name](*arguments(name, x, r, w, b))
        torch.testing.assert_close(found, usual, rtol=1e-5, atol=1e-5)
        assert found.is_contiguous()
        assert found.data_ptr() not in (x.data_ptr(), r.data_ptr()) or found.numel() == 0


@pytest.mark.parametrize("name", NAMES)
def test_what_a_kernel_cannot_do_it_refuses(
    name: str, kernels: dict[str, Callable[..., Tensor | None]]
) -> None:
    x, r, w, b = torch.randn(4, 16), torch.randn(4, 16), torch.rand(16), torch.randn(16)
    kernel = kernels[name]
    assert kernel(*arguments(name, x, r, w, b)) is not None
    assert kernel(*arguments(name, x.double(), r.double(), w.double(), b.double())) is None
    assert kernel(*arguments(name, x.to("meta"), r, w, b)) is None
    assert kernel(*arguments(name, x.clone().requires_grad_(), r, w, b)) is None
    with torch.no_grad():
        assert kernel(*arguments(name, x.clone().requires_grad_(), r, w, b)) is not None
    if name in ("layernorm_relu_add", "residual_add_rmsnorm", "swiglu"):
        assert kernel(*arguments(name, x, r[:1], w, b)) is None
    if "norm" in name:
        assert kernel(*arguments(name, x, r, w[:8], b)) is None
    if name != "swiglu":
        assert kernel(*arguments(name, torch.tensor(1.0), torch.tensor(1.0), w, b)) is None


@pytest.mark.parametrize("name", NAMES)
def test_after_a_dispatcher_s_checks_the_same_comes_out(
    name: str, kernels: dict[str, Callable[..., Tensor | None]]
) -> None:
    x, r, w, b = torch.randn(9, 40), torch.randn(9, 40), torch.rand(40), torch.randn(40)
    checked = getattr(
        importlib.import_module(f"agent.library.exemplars.cpu.{name}"), f"library_{name}_checked"
    )
    usual = kernels[name](*arguments(name, x, r, w, b))
    assert usual is not None
    assert torch.equal(checked(*arguments(name, x, r, w, b)), usual)
    # A dispatcher knows several dtypes, and cannot see that somebody gave a parameter's data another memory.
    assert checked(*arguments(name, x.double(), r.double(), w.double(), b.double())) is None
    if "norm" in name or name == "bias_gelu":
        assert checked(*arguments(name, x, r, w[:8].clone(), b[:8].clone())) is None
        spread = torch.ones(1).expand(40)
        assert checked(*arguments(name, x, r, spread, spread)) is None
        assert checked(*arguments(name, x, r, w.to("meta"), b.to("meta"))) is None
    if name in ("layernorm_relu_add", "residual_add_rmsnorm", "swiglu"):
        assert checked(*arguments(name, x, r[:1].clone(), w, b)) is None


def test_a_sum_may_keep_its_dimension(kernels: dict[str, Callable[..., Tensor]]) -> None:
    x = torch.randn(3, 5, 40)
    for keep in (False, True):
        torch.testing.assert_close(kernels["row_sum"](x, keep), x.sum(-1, keepdim=keep))


def test_one_thread_gives_the_same_bits(kernels: dict[str, Callable[..., Tensor]]) -> None:
    x, r, w, b = torch.randn(700, 700), torch.randn(700, 700), torch.rand(700), torch.randn(700)
    threads = torch.get_num_threads()
    try:
        several = {name: kernels[name](*arguments(name, x, r, w, b)) for name in NAMES}
        torch.set_num_threads(1)
        for name in NAMES:
            assert torch.equal(kernels[name](*arguments(name, x, r, w, b)), several[name])
    finally:
        torch.set_num_threads(threads)
