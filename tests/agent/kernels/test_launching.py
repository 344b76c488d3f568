"""Operations whose launches are noted once and repeated."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from agent.kernels.gpu import calls, launching


def _floats(address: int, count: int) -> Any:
    return (ctypes.c_float * count).from_address(address)


class _Added:
    """In place of a kernel that Triton compiled: adds a number to x and writes the sum to out, on the host."""

    __name__, arg_names = "added", ("x", "out", "count", "number")
    metadata = SimpleNamespace()
    function, packed_metadata = 0, ()

    def __init__(self) -> None:
        self.run = SimpleNamespace(
            launch=self.start, launch_cooperative_grid=False, launch_pdl=False, global_scratch_size=0,
            profile_scratch_size=0,
        )  # fmt: skip
        self.launches = 0

    def start(self, *line: Any) -> None:
        assert line[:4] == (1, 1, 1, 7), "grid and stream"
        self.launches += 1
        x, out, count, number = line[13:]
        to = _floats(out, count)
        to[:] = [one + number for one in _floats(x, count)]

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        def run(x: Any, out: Any, count: int, number: float) -> Any:
            places = (one if isinstance(one, int) else one.data_ptr() for one in (x, out))
            self.start(1, 1, 1, 7, *[None] * 9, *places, count, number)
            return self

        return run


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Added]:
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _: 7, raising=False)
    monkeypatch.setattr(triton, "__version__", "3.6.0")
    yield _Added()
    launching._known.clear()


def added(kernel: Any, x: torch.Tensor, out: torch.Tensor, number: float) -> None:
    launching.launch(kernel, (1,), (x, out), (x.numel(), number))


def test_repeated_launches_follow_their_tensors_not_their_memory(kernel: _Added) -> None:
    written = []

    @launching.repeated
    def operation(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        written.append(1)
        added(kernel, a, out[0], 1.0)
        added(kernel, b[4:], out[1, :4], 2.0)
        return out

    memory = torch.arange(16.0)
    # The first call's second argument begins where the first one's second half does.
    for _ in range(2):  # the second call is noted
        operation(memory[:8], memory[4:12], torch.empty(2, 8))
    apart, more = torch.arange(100.0, 108.0), torch.arange(200.0, 208.0)
    out = torch.zeros(2, 8)
    assert operation(apart, more, out) is out and len(written) == 2
    assert out.tolist() == [[*range(101, 109)], [206, 207, 208, 209, 0, 0, 0, 0]]
    operation(apart, more, torch.empty(2, 16)[:, :8])  # other strides
    assert len(written) == 3


@pytest.mark.parametrize(("is_free", "compiled"), [(True, 2), (False, 4)])
def test_a_number_that_a_kernel_is_not_specialized_for_needs_no_other_code(
    kernel: Any, is_free: bool, compiled: int
) -> None:
    kernel.params = [SimpleNamespace(do_not_specialize=one) for one in (False, False, is_free, False)]
    launching._free.clear()
    for count, number in ((4, 1.0), (6, 1.0), (4, 2.0), (6, 2.0), (6, 1.0)):
        x, out = torch.arange(8.0), torch.zeros(8)
        launching.launch(kernel, (1,), (x, out), (count, number))
        assert out.tolist() == [one + number if one < count else 0.0 for one in range(8)]
    assert len(launching._known) == compiled
    launching._free.clear()


def test_one_tensor_in_two_places_is_not_taken_for_two(kernel: _Added) -> None:
    @launching.repeated
    def operation(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        added(kernel, a, out[0], 1.0)
        added(kernel, b, out[1], 2.0)
        return out

    zeros, tens = torch.zeros(4), torch.full((4,), 10.0)
    for a, b in (
        (zeros, zeros),
        (zeros, zeros),
        (zeros, tens),
        (tens, zeros),
        (zeros, tens),
        (tens, tens),
        (zeros, zeros),
    ):
        assert operation(a, b, torch.empty(2, 4))[:, 0].tolist() == [a[0] + 1, b[0] + 2]


def test_memory_in_between_and_results_are_allocated_for_each_call(
    kernel: _Added, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, empty = [], torch.empty

    @launching.repeated
    def operation(x: torch.Tensor, scale: float) -> torch.Tensor:
        written.append(1)
        between, zeros = torch.empty(2, x.numel()), torch.zeros(3)
        out = x.new_empty((2, x.numel()))
        added(kernel, x, between[1], scale)
        added(kernel, between[1], out[0], 10.0)
        added(kernel, zeros, out[1], 5.0)
        return out

    for _ in range(2):
        first = operation(torch.tensor([1.0, 2.0, 3.0]), 1.0)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "empty", lambda *args, **more: empty(*args, **more).fill_(96))
        second = operation(torch.tensor([4.0, 5.0, 6.0]), 1.0)
    assert len(written) == 2 and kernel.launches == 9
    assert first.tolist() == [[12, 13, 14], [5, 5, 5]] and second.tolist() == [[15, 16, 17], [5, 5, 5]]
    assert operation(torch.tensor([4.0, 5.0, 6.0]), 2.0)[0].tolist() == [16, 17, 18]
    assert len(written) == 3


@pytest.mark.parametrize(
    "mode", [nullcontext, torch.no_grad, torch.inference_mode, torch._C._DisableTorchDispatch]
)
def test_what_cannot_be_repeated_runs_as_written(kernel: _Added, mode: Callable[[], Any]) -> None:
    """In inference mode dispatch reports `contiguous` and `reshape` as views although they copy; the last mode hides all operations."""
    written = []

    @launching.repeated
    def copies(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        written.append("copies")
        added(kernel, x.contiguous(), out, 1.0)
        added(kernel, x.reshape(-1)[4:], out[1], 1.0)
        return out

    @launching.repeated
    def changes(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        written.append("changes")
        added(kernel, x.add_(1.0), out, 1.0)
        return out

    @launching.repeated
    def declines(x: torch.Tensor) -> None:
        written.append("declines")

    @launching.repeated
    def gives_none(x: torch.Tensor, out: torch.Tensor) -> None:
        written.append("gives none")
        added(kernel, x, out, 1.0)

    @launching.repeated
    def gives_one_twice(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        written.append("gives one twice")
        out = torch.empty(4, 2)
        added(kernel, x, out, 1.0)
        return out, out.view(2, 4)

    with mode():
        for number in (1.0, 2.0, 3.0, 4.0):
            x, given, out = torch.full((4, 2), number), torch.full((4, 2), number), torch.empty(4, 2)
            assert copies(x.t(), torch.empty(2, 4)).tolist() == [[number + 1] * 4] * 2
            assert changes(given, torch.empty(4, 2)).tolist() == [[number + 2] * 2] * 4
            gives_none(x, out)
            assert out.tolist() == [[number + 1] * 2] * 4
            assert [one.tolist() for one in gives_one_twice(x)] == [
                [[number + 1] * 2] * 4,
                [[number + 1] * 4] * 2,
            ]
            assert declines(x) is None
    expected = {"copies": 4, "changes": 4, "gives none": 4, "gives one twice": 4, "declines": 2}
    if mode is torch._C._DisableTorchDispatch:
        expected["declines"] = 4
    assert {name: written.count(name) for name in written} == expected


def test_several_results_are_given_and_new_ones(kernel: _Added) -> None:
    written = []

    @launching.repeated
    def operation(x: torch.Tensor, out: torch.Tensor) -> tuple[torch.Tensor, ...]:
        written.append(1)
        between, new = torch.empty(x.shape), x.new_empty(x.shape)
        added(kernel, x, between, 1.0)
        added(kernel, between, new, 1.0)
        added(kernel, new, out, 1.0)
        return new, out

    for number in (0.0, 10.0, 20.0):
        out = torch.empty(3)
        new, same = operation(torch.full((3,), number), out)
        assert same is out and new.tolist() == [number + 2] * 3 and out.tolist() == [number + 3] * 3
    assert len(written) == 2


def test_a_part_of_new_memory_is_no_result_that_can_be_repeated(kernel: _Added) -> None:
    """The rest of the memory must be there as well."""
    written = []

    @launching.repeated
    def operation(x: torch.Tensor) -> torch.Tensor:
        written.append(1)
        both = torch.empty(2, x.numel())
        added(kernel, x, both, 1.0)
        added(kernel, x, both[1], 2.0)
        return both[0]

    for _ in range(4):
        assert operation(torch.ones(4)).tolist() == [2] * 4
    assert len(written) == 4


def test_another_version_of_triton_runs_operations_as_written(
    kernel: _Added, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []

    @launching.repeated
    def operation(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        written.append(1)
        added(kernel, x, out, 1.0)
        return out

    monkeypatch.setattr(triton, "__version__", "3.7.1")
    for _ in range(4):
        assert operation(torch.ones(2), torch.empty(2)).tolist() == [2, 2]
    assert len(written) == 4


@triton.jit
def _four_bits(row, j, first, there, row_there, p0, p1, p2, p3):  # type: ignore[no-untyped-def]
    byte = tl.load(p0 + row * 1024 + j, mask=there, other=0).to(tl.int32)
    return tl.join((byte & 15) - 8, (byte >> 4) - 8).to(tl.float32), 0.125


Case = tuple[
    Any, Callable[[], tuple[torch.Tensor, ...]], Callable[..., torch.Tensor], Callable[..., torch.Tensor]
]


def normal(*sizes: tuple[int, ...]) -> Callable[[], tuple[torch.Tensor, ...]]:
    return lambda: tuple(torch.randn(size, device="cuda") for size in sizes)


def product(rows: int) -> Case:
    def run(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return calls.library_mm(x, w.t(), out=torch.empty(rows, 9000, device="cuda"))

    return calls._product, normal((rows, 4096), (9000, 4096)), run, lambda x, w: x @ w.t()


def packed() -> Case:
    def make() -> tuple[torch.Tensor, ...]:
        packs = torch.randint(0, 256, (4096, 1024), device="cuda", dtype=torch.uint8)
        return torch.randn(16, 2048, device="cuda"), packs

    def exact(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x @ torch.stack([w & 15, w >> 4], 2).flatten(1).to(x.dtype).sub(8).mul(0.125).t()

    return calls._packed_product, make, lambda x, w: calls.library_packed(x, [w], 4096, _four_bits, 2), exact


def convolution(transposed: bool) -> Case:
    step = 2 if transposed else 1
    function = F.conv_transpose2d if transposed else F.conv2d

    def run(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return calls.library_convolution(x, w, [step] * 2, [1, 1], [1, 1], transposed, [0, 0], 1)

    sizes = (16, 64, 128, 128), (64, 64, 3, 3)
    return calls._convolution, normal(*sizes), run, lambda x, w: function(x, w, None, step, 1)


def softmax() -> Case:
    return (
        calls.softmax,
        normal((64, 393216)),
        lambda x: calls.library_softmax(x, False),
        lambda x: x.softmax(-1),
    )


def attention(queries: int, apart: bool = False) -> Case:
    """Apart: heads lie behind the sequence, as a projection makes them."""

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if queries > 16:
            return calls.library_attention(q, k, v, None, None, False)
        return calls.library_decoding(q, [k], [v], None, None, None, True, None)

    sizes = [(4, count, 32, 128) if apart else (4, 32, count, 128) for count in (queries, 4096, 4096)]

    def make() -> tuple[torch.Tensor, ...]:
        return tuple(one.transpose(1, 2) if apart else one for one in normal(*sizes)())

    noted = calls._attention if queries > 16 else calls._decoding
    return noted, make, run, lambda q, k, v: (q @ k.transpose(2, 3) * 128**-0.5).softmax(-1) @ v


@pytest.mark.gpu
@pytest.mark.parametrize(
    "case",
    [
        lambda: product(3000),
        lambda: product(16),
        packed,
        lambda: convolution(False),
        lambda: convolution(True),
        softmax,
        lambda: attention(2048),
        lambda: attention(2048, apart=True),
        lambda: attention(1),
    ],
    ids=[
        "product",
        "few rows",
        "packed",
        "convolution",
        "transposed",
        "softmax",
        "attention",
        "attention apart",
        "decoding",
    ],
)
def test_each_call_on_a_gpu_has_its_own_tensors(case: Callable[[], Case]) -> None:
    """Four times with other values and memory, the last time in a CUDA graph that is replayed with other values again."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.manual_seed(0)
    noted, make, run, exact = case()

    def check(out: torch.Tensor, given: tuple[torch.Tensor, ...]) -> None:
        wanted = exact(*(one.double() if one.is_floating_point() else one for one in given))
        assert float((out - wanted).norm() / wanted.norm()) < 1e-6

    noted.known.clear()
    alive = []
    for _ in range(3):
        given = make()
        out = run(*given)
        check(out, given)
        alive.append((given, out))
    assert [notes.is_whole and bool(notes._launches) for notes in noted.known.values()] == [True]
    given, graph = make(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = run(*given)
    for old, new in zip(given, make(), strict=True):
        old.copy_(new)
    graph.replay()
    check(out, given)
    assert len(noted.known) == 1
