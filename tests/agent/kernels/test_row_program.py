"""Modules over rows as loops in C++, against float64: any size, any content, and what is no such module."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import cpp_extension

from agent.kernels.cpu import runtime
from agent.kernels.cpu.row_program import row_program
from agent.kernels.cpu.row_reading import NotRows
from agent.kernels.writing import row_module
from tests.variants import some

Tensor = torch.Tensor
Module = Callable[[Tensor, Tensor, Tensor, Tensor], Any]


def centered(x: Tensor, r: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Several outputs of each kind, and a sum that is needed twice."""
    less = x - x.mean(-1, keepdim=True)
    power = torch.exp(less - less.amax(-1, keepdim=True))
    return power / power.sum(-1, keepdim=True) * w, torch.logsumexp(x, -1), r.std(-1, keepdim=True)


def sparse(x: Tensor) -> Tensor:
    """A softmax with zeros: sorted, summed up, counted, and one element taken by the count."""
    x = x - x.amax(-1, keepdim=True)
    ordered = x.sort(dim=-1, descending=True).values
    excess = ordered.cumsum(-1) - 1.0
    rank = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype)
    support = (rank * ordered > excess).sum(-1, keepdim=True)
    return (x - excess.gather(-1, (support - 1).clamp(min=0)) / support).clamp(min=0.0)


def first_two(x: Tensor) -> tuple[Tensor, Tensor]:
    """The largest elements of a row, one from the other, and where the first one is."""
    best = x.topk(2, dim=-1).values
    return x.argmax(dim=-1), best[:, 0] - best[:, 1]


def chosen(x: Tensor, r: Tensor) -> Tensor:
    """Of two rows the elements by comparisons."""
    return torch.where(x > r, x * 2, r) + torch.where(r >= 0, x, x * 0.5) + (x <= 1).float()


MODULES: dict[str, Module] = {
    "layer norm, relu, add": lambda x, r, w, b: F.relu(F.layer_norm(x, x.shape[-1:], w, b, 1e-5)) + r,
    "add, rms norm": lambda x, r, w, b: F.rms_norm(x + r, x.shape[-1:], w, 1e-6),
    "rms norm by hand": lambda x, r, w, b: x * torch.rsqrt(x.pow(2).mean(-1, True) + 1e-6) * w,
    "softmax": lambda x, r, w, b: F.softmax(x, -1),
    "log-softmax": lambda x, r, w, b: F.log_softmax(x * 0.5, dim=1),
    "swiglu": lambda x, r, w, b: F.silu(x) * r,
    "bias, gelu": lambda x, r, w, b: F.gelu(x + b, approximate="tanh"),
    "gelu, tanh": lambda x, r, w, b: F.gelu(x) + torch.tanh(r * w),
    "sum": lambda x, r, w, b: x.sum(-1),
    "least and clamped": lambda x, r, w, b: (
        torch.clamp(x, -1.0, 1.5) - x.amin(-1, keepdim=True) / x.shape[-1]
    ),
    "unit length": lambda x, r, w, b: x / (torch.linalg.vector_norm(x, dim=-1, keepdim=True) + 1e-3),
    "of each kind": centered,
    "softmax of an activation": lambda x, r, w, b: (
        F.softmax(F.silu(x) * 2, -1) + F.log_softmax(F.gelu(r), -1)
    ),
    "exponentials by their largest": lambda x, r, w, b: (
        torch.exp(x.clamp(-5.0, 5.0)) / torch.exp(x.clamp(-5.0, 5.0)).amax(-1, keepdim=True)
    ),
    "values of rows": lambda x, r, w, b: (x.sum(-1) * 2 + r.mean(-1), (x.mean(-1) * 3).unsqueeze(-1) - r),
    "logarithms": lambda x, r, w, b: torch.log(x * x + 1e-3) * r,
    "running logsumexp": lambda x, r, w, b: (
        torch.logcumsumexp(x, -1) * w + r,
        torch.logcumsumexp(r * 3, dim=1).amax(-1),
    ),
    "sparse softmax": lambda x, r, w, b: sparse(x),
    "sorted": lambda x, r, w, b: (
        (x + b).sort(-1).values * w,
        r.sort(dim=1, descending=True, stable=True)[0],
    ),
    "largest two": lambda x, r, w, b: first_two(x),
    "least and where": lambda x, r, w, b: (
        x.argmin(-1, keepdim=True),
        r.topk(1, -1).values[:, 0],
    ),
    "medians": lambda x, r, w, b: (
        x.median(-1).values,
        (r * w).median(dim=-1, keepdim=True)[0],
        r.kthvalue(2, -1).values,
    ),
    "chosen": lambda x, r, w, b: chosen(x, r),
    "running sums": lambda x, r, w, b: (x.cumsum(-1) - r, (r * r).cumsum(1).sum(-1)),
    "variances": lambda x, r, w, b: (x.var(-1, unbiased=False), torch.std(x, -1, False, True), r.var(-1)),
}


def exactly(x: Tensor, r: Tensor, w: Tensor, b: Tensor) -> Any:
    """What tests below look at one by one."""
    return x * r - r * x, 1 / x.abs(), torch.log(x) + 0 * r, r.gather(-1, (x > 0).sum(-1, keepdim=True) - 1)


def weighted_moments(x: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Means and variances of the elements that count; none may."""
    total = (x.abs() * valid).sum(-1, keepdim=True).clamp(min=1e-4)
    mean = (x.abs() * valid * x).sum(-1, keepdim=True) / total
    variance = (x.abs() * valid * (x - mean).square()).sum(-1) / total.squeeze(-1)
    return mean.squeeze(-1), torch.sqrt(variance + 1e-4)


def masked(mask: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    return x * mask, (x * mask).sum(-1)


# Every vector width and count, one off on both sides, and rows longer than a cache.
COLUMNS = (2, 7, 8, 9, 15, 16, 17, 31, 33, 47, 64, 65, 100, 127, 128, 129, 191, 1000, 4099, 20001)


def traced(module: Module) -> torch.fx.Graph:
    """The graph for sizes that are symbols, as the capture program has it."""
    return traced_for(module, torch.randn(6, 40), torch.randn(6, 40), torch.randn(40), torch.randn(40))


def traced_for(module: Callable[..., Any], *given: Tensor) -> torch.fx.Graph:
    def flat(*values: Tensor) -> list[Tensor]:
        out = module(*values)
        return list(out) if isinstance(out, tuple) else [out]

    with torch.no_grad():
        return make_fx(flat, pre_dispatch=True, tracing_mode="symbolic")(*given).graph


#: Of each loop the graph and how many of its inputs are rows.
GRAPHS: dict[str, Callable[[], tuple[torch.fx.Graph, int]]] = {
    **{name: partial(lambda module: (traced(module), 2), module) for name, module in MODULES.items()},
    "exactly": lambda: (traced(exactly), 2),
    "of elements": lambda: (traced_for(weighted_moments, torch.randn(6, 40), torch.rand(6, 40) < 0.5), 2),
    "of columns": lambda: (traced_for(weighted_moments, torch.randn(6, 40), torch.rand(40) < 0.5), 2),
    "masked": lambda: (traced_for(masked, torch.rand(6, 40) < 0.5, torch.randn(6, 40)), 2),
}
#: By tests that have no parameter for it.
ASKED_BY_NAME = ("layer norm, relu, add", "running logsumexp", "sorted", "exactly", "masked")


class Loops(dict[str, Callable[..., tuple[Tensor, ...]]]):
    """Modules as loops, all built when the first is asked for: one compilation of what they share takes a third of the time."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        super().__init__()
        self.folder, self.names = folder, names

    def __missing__(self, name: str) -> Callable[..., tuple[Tensor, ...]]:
        names = self.names if name in self.names else [name]
        texts = [row_module(row_program(*GRAPHS[one]())) for one in names]
        loops = loaded_together(self.folder / f"loops{len(self)}", texts)
        self.update((one, loop.call) for one, loop in zip(names, loops, strict=True))
        return self[name]


@pytest.fixture(scope="module")
def loops(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Loops:
    here = [item for item in request.session.items if item.path == request.path]
    asked = {item.callspec.params.get("name") for item in here if hasattr(item, "callspec")}
    names = [name for name in GRAPHS if name in asked or name in ASKED_BY_NAME]
    return Loops(tmp_path_factory.mktemp("loops"), names)


def loaded(path: Path, text: str, level: str = "-O0") -> Any:
    # Without optimization the same results come in a third of the time; judged tasks are compiled as they are.
    path.write_text(text.replace('"-O3"', f'"{level}"'))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def loaded_together(folder: Path, texts: Sequence[str]) -> list[Any]:
    """Modules whose functions are in one library, each in a namespace of its own behind what all have."""
    begin, end = "CPP_SOURCE = r'''", "'''\n"
    shared = (Path(runtime.__file__).parent / "simd.h").read_text()
    sources = [text[text.index(begin) + len(begin) :] for text in texts]
    sources = [source[: source.index(end)] for source in sources]
    together, found = shared, []
    for number, source in enumerate(sources):
        assert source.count(shared) == source.count("void rows(") == 1
        own = source.replace(shared, "").replace("void rows(", f"void rows_{number}(")
        together += f"\nnamespace of_{number} {{\n{own}\n}}\n"
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        libraries: list[str] = []
        build = cpp_extension.load_inline

        def load_once(*given: Any, **more: Any) -> str:
            if not libraries:
                libraries.append(build(*given, **more))
            return libraries[0]

        patch.setattr(cpp_extension, "load_inline", load_once)
        for number, (text, source) in enumerate(zip(texts, sources, strict=True)):
            assert text.count('"rows"') == 1
            text = text.replace(source, together if number == 0 else "").replace('"rows"', f'"rows_{number}"')
            found.append(loaded(folder / f"{folder.name}_{number}.py", text))
    return found


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
    return float((found.double() - expected).abs().max() / expected.abs().max().clamp_min(1e-30))


def pairs(module: Module, loop: Any, *given: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Each output of the loop, of torch, and of torch in float64."""
    usual, exact = module(*given), module(*(one.double() for one in given))
    found = loop(list(given))
    if not isinstance(usual, tuple):
        usual, exact = (usual,), (exact,)
    return list(zip(found, usual, exact, strict=True))


@pytest.mark.parametrize(
    "kind", ["normal", "constant rows", "small spread on a large mean", "wide range", "integers"]
)
@pytest.mark.parametrize("name", some(MODULES, 8))
def test_a_loop_is_as_accurate_as_torch(name: str, kind: str, loops: Loops) -> None:
    torch.manual_seed(1)
    for cols in COLUMNS:
        rows = min(37, 40_000 // cols + 1)
        given = contents(kind, rows, cols), torch.randn(rows, cols), torch.rand(cols) + 0.5, torch.randn(cols)
        for found, usual, exact in pairs(MODULES[name], loops[name], *given):
            assert (found.shape, found.stride(), found.dtype) == (usual.shape, usual.stride(), usual.dtype)
            assert error(found, exact) <= max(1e-6, 4 * error(usual, exact)), f"{rows} x {cols}"


@pytest.mark.parametrize("name", some(MODULES, 24))
def test_many_rows_on_two_threads_and_past_the_cache(name: str, loops: Loops) -> None:
    """4.2 million elements: the output is streamed, and each thread has its own half."""
    torch.manual_seed(2)
    for rows, cols in ((14_001, 300), (60_001, 9), (517, 8111)):
        given = torch.randn(rows, cols), torch.randn(rows, cols), torch.rand(cols) + 0.5, torch.randn(cols)
        for found, usual, _ in pairs(MODULES[name], loops[name], *given):
            torch.testing.assert_close(found, usual, rtol=1e-4, atol=1e-4)


def test_a_constant_row_is_normalized_to_exactly_nothing(loops: Loops) -> None:
    for value in (1e-3, 0.1, 3.7, 1e6 + 0.3, -12345.678):
        for cols in (8, 65, 1000, 8191):
            x, zero = torch.full((3, cols), value), torch.zeros(3, cols)
            (y,) = loops["layer norm, relu, add"]([x, zero, torch.ones(cols), torch.zeros(cols)])
            assert y.count_nonzero() == 0


@pytest.mark.parametrize("name", some(MODULES, 8))
def test_nan_and_infinity_are_where_torch_has_them(name: str, loops: Loops) -> None:
    special = torch.tensor(
        [[torch.nan, 1.0], [torch.inf, 1.0], [-torch.inf, 1.0], [90.0, -90.0], [1e30, 2e30], [0.0, -0.0]]
    )
    for cols in (10, 23, 70, 300):
        x = torch.ones(len(special), cols)
        x[:, -2:] = special
        given = x, torch.ones_like(x), torch.ones(cols), torch.zeros(cols)
        for found, usual, exact in pairs(MODULES[name], loops[name], *given):
            if name == "variances":  # torch takes squares of 1e30 in double precision for them
                found[4], usual[4] = 0.0, 0.0
            # torch's vectors differ from its single values: GELU of Inf is NaN there, and SiLU of -Inf is none.
            usual = torch.where(usual.isnan() != exact.isnan(), exact.to(usual.dtype), usual)
            assert torch.equal(found.isnan(), usual.isnan())
            assert torch.equal(found.isinf(), usual.isinf())
            torch.testing.assert_close(found, usual, rtol=1e-5, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("name", some(MODULES, 8))
def test_no_rows_one_thread_and_fresh_outputs(name: str, loops: Loops) -> None:
    w, b = torch.rand(40), torch.randn(40)
    none = loops[name]([torch.empty(0, 40), torch.empty(0, 40), w, b])
    assert all(one.numel() == 0 for one in none)
    given = [torch.randn(700, 40), torch.randn(700, 40), w, b]
    several, again = loops[name](given), loops[name](given)
    assert not {one.data_ptr() for one in several} & {one.data_ptr() for one in (*again, *given)}
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert all(torch.equal(a, b) for a, b in zip(loops[name](given), several, strict=True))
    finally:
        torch.set_num_threads(threads)


def test_a_product_is_rounded_before_it_is_subtracted_from(tmp_path: Path) -> None:
    """One rounding for both would leave a rest, where torch leaves none. Only an optimizing compiler would do that."""
    text = row_module(row_program(traced(lambda x, r, w, b: x * r - w), 2))
    u, v = torch.randn(300), torch.randn(300)
    given = [u.repeat(9, 1), v.repeat(9, 1), u * v]
    (found,) = loaded(tmp_path / "apart.py", text, "-O3").call(given)
    assert not found.any()


def test_zeros_keep_their_sign(loops: Loops) -> None:
    x, r = torch.randn(9, 300), torch.randn(9, 300)
    x[:, 7], x[:, 8] = 0.0, -0.0
    difference, inverse, *_ = loops["exactly"]([x, r])
    assert torch.equal(difference, x * r - r * x) and not difference.signbit().any()
    assert torch.equal(inverse, 1 / x.abs())


@pytest.mark.parametrize("name", some(["of elements", "of columns"]))
def test_truth_values_are_zeros_and_ones(name: str, loops: Loops) -> None:
    for cols in COLUMNS:
        x, valid = torch.randn(5, cols), torch.rand(5, cols) < 0.5
        valid[0] = False
        given = x, valid[1] if name == "of columns" else valid
        ones = torch.randint(1, 256, given[1].shape, dtype=torch.uint8)
        large = (given[1] * ones).view(torch.bool)  # any byte but 0 is true
        for mask in (given[1], large):
            for found, exact in zip(
                loops[name]([x, mask]), weighted_moments(x.double(), given[1]), strict=True
            ):
                assert error(found, exact) < 1e-6


def test_a_mask_may_come_first_but_does_not_say_how_rows_are_stored(loops: Loops) -> None:
    mask, x = torch.rand(6, 40) < 0.5, torch.randn(6, 40)
    for found, usual in zip(loops["masked"]([mask, x]), masked(mask, x), strict=True):
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, usual)
    with pytest.raises(NotRows):
        row_program(traced_for(lambda mask: mask.float() * 2, mask), 1)
    with pytest.raises(NotRows):
        row_program(traced_for(lambda mask, x: x * mask[0], mask.expand(3, 6, 40).contiguous(), x), 2)


def test_logarithms_of_every_size_of_numbers(loops: Loops) -> None:
    """Within two units in the last place, also where the result is small."""
    x = torch.cat([torch.logspace(-44, 38, 30_000), 1 + torch.linspace(-1e-3, 1e-3, 10_001)]).unsqueeze(0)
    x[0, :6] = torch.tensor([0.0, -0.0, -1.0, torch.inf, -torch.inf, torch.nan])
    found = loops["exactly"]([x, torch.zeros_like(x)])[2]
    assert torch.equal(found[0, :6].isnan(), torch.log(x[0, :6]).isnan())
    assert torch.equal(found[0, [0, 1, 3]], torch.log(x[0, [0, 1, 3]]))
    found, exact = found[0, 6:].double(), torch.log(x[0, 6:].double())
    assert ((found - exact).abs() <= 2 * 2.0**-23 * exact.abs()).all()


@pytest.mark.parametrize("cols", [5, 17, 130, 1000])
def test_running_logarithms_of_sums_of_what_is_far_apart_or_not_finite(cols: int, loops: Loops) -> None:
    torch.manual_seed(3)
    x = torch.cat([torch.randn(4, cols) * spread for spread in (1, 30, 1000)])
    x[0, 0], x[1, cols // 2], x[2, cols // 3] = -torch.inf, torch.inf, torch.nan
    x[3, : cols // 2], x[7] = -torch.inf, -torch.inf
    x[4, -1] = 5000.0
    x = torch.cat([x, torch.arange(cols) * 3.0 + torch.zeros(1, cols), torch.zeros(1, cols)])
    ones = torch.ones(cols)
    found, _ = loops["running logsumexp"]([x, torch.zeros_like(x), ones, ones])
    torch.testing.assert_close(found, torch.logcumsumexp(x, -1), equal_nan=True)


@pytest.mark.slow
def test_what_was_taken_is_not_taken_again_and_sums_are_double(tmp_path: Path) -> None:
    def module(x: Tensor, r: Tensor, w: Tensor, b: Tensor) -> Any:
        places = x.topk(3, -1).indices
        return places[:, 0] + 0, places[:, 1] + 0, places[:, 2] + 0, r.cumsum(-1) * 1.0

    loop = loaded(tmp_path / "taken.py", row_module(row_program(traced(module), 2))).call
    for cols in (5, 16, 40, 300):
        x = torch.full((3, cols), -torch.inf)
        x[0, 2], x[1, 1], x[1, 3] = 2.0, torch.nan, 7.0
        r = torch.full((3, cols), 0.5)
        r[0, 0], r[0, 1], r[0, 2] = 1e8, 1.0, -1e8
        r[1, 0], r[1, 1], r[1, 2] = 3e38, 3e38, -3e38
        *places, sums = loop([x, r, torch.ones(cols), torch.zeros(cols)])
        assert torch.equal(sums, r.cumsum(-1))
        assert all(len({int(place[row]) for place in places}) == 3 for row in range(3))
        assert torch.equal(places[0][:2], torch.tensor([2, 1]))
        assert places[1][1] == 3


def test_a_computed_place_that_a_row_does_not_have_gives_nan(loops: Loops) -> None:
    x, r = torch.ones(3, 7), torch.randn(3, 7)
    x[1], x[2, 3:] = -1.0, -1.0
    found = loops["exactly"]([x, r])[3]
    assert found[1].isnan()
    assert torch.equal(found[[0, 2], 0], r[[0, 2], [6, 2]])


def with_places(module: Callable[[Tensor, Tensor], Tensor]) -> torch.fx.Graph:
    with torch.no_grad():
        return make_fx(lambda *given: [module(*given)], pre_dispatch=True, tracing_mode="symbolic")(
            torch.randn(6, 40), torch.randint(0, 40, (6,))
        ).graph


@pytest.mark.slow
def test_whole_numbers_of_an_input_are_places_in_rows(tmp_path: Path) -> None:
    def taken(x: Tensor, target: Tensor) -> Tensor:
        return (x * 2).gather(-1, target.unsqueeze(-1)).squeeze(-1)

    def loss(x: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(x, target, reduction="none")

    for number, module in enumerate((taken, loss)):
        loop = loaded(tmp_path / f"places{number}.py", row_module(row_program(with_places(module), 2))).call
        for cols in COLUMNS:
            x, target = torch.randn(7, cols) * 3, torch.randint(0, cols, (7,))
            target[0], target[1] = 0, cols - 1
            (found,) = loop([x, target])
            assert error(found, module(x.double(), target)) < 1e-6
            target[2], target[3], target[4] = -1, cols, 1 << 62  # torch fails
            (found,) = loop([x, target])
            assert found.isnan().tolist() == [False, False, True, True, True, False, False]
    target = torch.full((7,), -100)  # no loss is asked for
    target[3] = 0
    (found,) = loop([x, target])
    torch.testing.assert_close(found, loss(x, target))


@pytest.mark.parametrize(
    "module",
    [
        pytest.param(lambda x, t: x * t.unsqueeze(-1), id="numbers"),
        pytest.param(lambda x, t: x.gather(-1, (t + 1).unsqueeze(-1)), id="computed places"),
        pytest.param(lambda x, t: t[:], id="an input as output"),
        pytest.param(
            lambda x, t: F.cross_entropy(x, t, reduction="none", label_smoothing=0.1), id="smoothed"
        ),
        pytest.param(lambda x, t: F.cross_entropy(x, t), id="the mean of all rows"),
    ],
)
def test_other_uses_of_whole_numbers_are_no_loops(module: Callable[[Tensor, Tensor], Tensor]) -> None:
    with pytest.raises(NotRows):
        row_program(with_places(module), 2)


def test_rows_are_sorted_however_they_are(loops: Loops) -> None:
    """Equal elements, zeros of both signs, all magnitudes, NaN of both signs; short rows and long ones."""
    torch.manual_seed(4)
    for cols in COLUMNS:
        x = torch.randn(9, cols) * torch.exp(20 * torch.randn(9, cols))
        x[1], x[2], x[3] = 7.0, torch.randint(-2, 3, (cols,)).float(), x[3].abs()
        x[4, ::2], x[5, ::3], x[6, ::2] = 0.0, torch.nan, -torch.inf
        x[5, 1::3] = -torch.tensor(torch.nan)
        x[7, 0], x[8] = torch.inf, torch.arange(cols).float()
        zero, ones = torch.zeros(cols), torch.ones(cols)
        up, down = loops["sorted"]([x, x, ones, zero])
        assert torch.equal(
            up.nan_to_num(8.5, 1e39, -1e39), (x + zero).sort(-1).values.nan_to_num(8.5, 1e39, -1e39)
        )
        assert torch.equal(down.nan_to_num(8.5), x.sort(-1, descending=True).values.nan_to_num(8.5))


def test_the_number_of_columns_is_limited_where_they_are_numbered() -> None:
    """A float32 numbers 2^24 of them, and the places of some are added."""
    graph = traced(lambda x, r, w, b: x * torch.arange(0, x.shape[-1], dtype=x.dtype))
    program = row_program(graph, 2)
    assert program["outputs"] == ["full"]
    size = graph.find_nodes(op="placeholder")[0].meta["val"].shape[-1]
    assert any("8388608" in str(guard.expr) for guard in size.node.shape_env.guards)


@pytest.mark.parametrize("shape", [(5, 1, 40), (2, 3, 4, 5)])
def test_a_result_of_other_sizes_or_strides_is_no_loop(shape: tuple[int, ...]) -> None:
    def program(module: Callable[[Tensor], Tensor]) -> Any:
        with torch.no_grad():
            graph = make_fx(lambda x: [module(x)], pre_dispatch=True, tracing_mode="symbolic")(
                torch.randn(shape)
            )
        return row_program(graph.graph, 1)

    assert program(lambda x: x * 2 - x.mean(-1, keepdim=True))["outputs"] == ["full"]
    other: Callable[[Tensor], Tensor] = lambda x: x - x.mean(-1).unsqueeze(0)  # noqa: E731
    if len(shape) == 4:
        other = lambda x: x.contiguous(memory_format=torch.channels_last) * 2  # noqa: E731
    with pytest.raises(NotRows):
        program(other)


@pytest.mark.parametrize(
    "module",
    [
        pytest.param(lambda x, r, w, b: x @ r.T, id="a product of matrices"),
        pytest.param(lambda x, r, w, b: x.sum(0), id="a sum over columns"),
        pytest.param(lambda x, r, w, b: x.cumprod(-1), id="a running product"),
        pytest.param(lambda x, r, w, b: x.sort(-1)[1] * r, id="places of sorted elements"),
        pytest.param(lambda x, r, w, b: x.topk(9, -1).values.sum(-1), id="many elements"),
        pytest.param(lambda x, r, w, b: x.topk(2, -1).values, id="two elements of each row"),
        pytest.param(lambda x, r, w, b: x.gather(-1, r.argsort(-1)), id="elements in another order"),
        pytest.param(lambda x, r, w, b: x * torch.arange(0, 80, 2), id="every other number"),
        pytest.param(
            lambda x, r, w, b: (x.topk(2, -1).values - x.amax(-1, True))[:, 1] + 0, id="all largest ones"
        ),
        pytest.param(lambda x, r, w, b: x - x.topk(1, -1).values, id="the largest as a column"),
        pytest.param(lambda x, r, w, b: x.topk(2, -1).values[1] * w[0], id="the largest of a row"),
        pytest.param(lambda x, r, w, b: x.topk(2, -1, largest=False).values[:, 0], id="the smallest ones"),
        pytest.param(
            lambda x, r, w, b: x >= x.exp().gather(-1, x.argmax(-1, True)), id="an element's exponential"
        ),
        pytest.param(
            lambda x, r, w, b: x.exp().gather(-1, x.argmax(-1, True)), id="an exponential of an element"
        ),
        pytest.param(lambda x, r, w, b: (x > 0).sum(-1) + 100000001, id="a large count"),
        pytest.param(lambda x, r, w, b: (x > 0).sum(-1) + (r > 0).sum(-1), id="counts added up"),
        pytest.param(lambda x, r, w, b: ((x > 0) + 1).sum(-1), id="a sum of whole numbers"),
        pytest.param(lambda x, r, w, b: x.logcumsumexp(0), id="a scan over columns"),
        pytest.param(lambda x, r, w, b: x > r, id="truth values as output"),
        pytest.param(lambda x, r, w, b: x.half() * 2, id="another type"),
        pytest.param(lambda x, r, w, b: x.add_(1), id="a write in place"),
        pytest.param(lambda x, r, w, b: w * 2, id="no rows in the output"),
        pytest.param(lambda x, r, w, b: (x, x + 1), id="an input as output"),
        pytest.param(lambda x, r, w, b: x.flatten(), id="another shape"),
        pytest.param(lambda x, r, w, b: F.dropout(x, 0.5, training=True), id="random numbers"),
        pytest.param(lambda x, r, w, b: x * float("inf"), id="no number"),
        pytest.param(lambda x, r, w, b: x * x.shape[0], id="the number of rows"),
        pytest.param(
            lambda x, r, w, b: x.sum(-1) * 2 + r.sum(-1, keepdim=True), id="one of each row by another"
        ),
        pytest.param(lambda x, r, w, b: torch.var(x, -1, correction=0.5).sum(), id="everything summed"),
    ],
)
def test_other_modules_are_no_loops(module: Module) -> None:
    with pytest.raises(NotRows):
        row_program(traced(module), 2)


def hashed(x: Tensor, seed: Tensor) -> tuple[Tensor, Tensor]:
    """Noise from a counter and a seed for each row, and a number of each row."""
    counter = torch.arange(x.shape[-1])
    noise = (counter * 2654435769 + seed - 7) & 0xFFFFFFFF
    noise = ((noise ^ (noise >> 16)) * 2246822507) & 0xFFFFFFFF
    noise = (noise ^ (noise >> 13) | counter) >> 9
    row = ((seed * seed) & 0xFFFF) >> 3
    return x + noise.to(x.dtype) * 2.0**-23, x.amax(-1, keepdim=True) * row.to(x.dtype)


def graph_of_hash(module: Callable[..., Any]) -> torch.fx.Graph:
    given = torch.randn(6, 40), torch.randint(0, 99, (6, 1))
    with torch.no_grad():
        return make_fx(lambda *values: list(module(*values)), pre_dispatch=True, tracing_mode="symbolic")(
            *given
        ).graph


@pytest.mark.slow
def test_hashes_have_the_bits_that_torch_has(tmp_path: Path) -> None:
    """The lower 32 of 64: seeds may be negative or larger, and products overflow."""
    loop = loaded(tmp_path / "hashed.py", row_module(row_program(graph_of_hash(hashed), 2))).call
    seeds = torch.tensor([[0], [1], [2**31 - 1], [2**32 + 5], [-3], [2**62 + 12345], [-(2**63)]])
    for cols in COLUMNS:
        x = torch.randn(len(seeds), cols)
        for found, usual in zip(loop([x, seeds]), hashed(x, seeds), strict=True):
            assert torch.equal(found, usual)


@pytest.mark.parametrize(
    "module",
    [
        lambda x, seed: [x + (seed * 3).to(x.dtype)],  # may have more than 32 bits
        lambda x, seed: [x * ((torch.arange(x.shape[-1]) + seed) >> 3).to(x.dtype)],
        lambda x, seed: [x * ((seed & 0xFF) >> 33).to(x.dtype)],
        lambda x, seed: [x * ((seed & -2) >> 1).to(x.dtype)],
        lambda x, seed: [x.sum(-1, keepdim=True), (seed & 0xFF) * 1],  # an output that has 64 bits
        lambda x, seed: [x * (torch.arange(x.shape[-1]) < 3)],
        lambda x, seed: [x * ((seed & 0xFF) // 3).to(x.dtype)],
        lambda x, seed: [x.sum(-1), (seed * 3).squeeze(-1)],
        lambda x, seed: [x.sum(-1) * -(seed & 255).squeeze(-1).to(x.dtype)],
        lambda x, seed: [x * 2, x.gather(-1, seed & 3)],
        lambda x, seed: [x * 2, F.cross_entropy(x, (seed & 3).squeeze(-1), reduction="none")],
        lambda x, seed: [x + ((torch.arange(x.shape[-1]) + seed) & 255).sort(-1).values.to(x.dtype)],
    ],
)
def test_what_needs_all_64_bits_is_no_loop(module: Callable[..., Any]) -> None:
    with pytest.raises(NotRows):
        row_program(graph_of_hash(module), 2)


def test_memory_of_outputs_is_used_again_while_older_ones_are_in_use() -> None:
    x = torch.empty(1 << 16)
    runtime._pool.clear()
    alive = [runtime.empty_output(x) for _ in range(12)]
    places = [one.data_ptr() for one in alive]
    assert len(set(places)) == 12
    del alive[6:]
    alive += [runtime.empty_output(x) for _ in range(6)]
    assert {one.data_ptr() for one in alive[6:]} == set(places[6:])
    one_more = runtime.empty_output(x)
    assert one_more.data_ptr() not in places, "all twelve are in use"
    view = alive[0][:10]
    del alive, one_more
    assert all(runtime.empty_output(x).data_ptr() != view.data_ptr() for _ in range(20))
