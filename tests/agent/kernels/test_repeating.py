"""Whole calls of generated code that are noted once and repeated, with kernels on the host in place of compiled ones."""

from __future__ import annotations

import ctypes
import sys
import textwrap
import threading
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton

from agent.kernels.gpu import launching, repeating
from agent.kernels.writing import with_library


def _floats(address: int, count: int) -> Any:
    return (ctypes.c_float * count).from_address(address)


def _address(one: Any) -> int:
    return int(one.data_ptr()) if isinstance(one, torch.Tensor) else one


class Driver:
    """In place of Inductor's static launcher: kernels add a number, their function, to x and write the sum to out."""

    def __init__(self) -> None:
        self.launches = 0

    def _launch_kernel(self, number: float, *line: Any) -> None:
        x, y, z, warps, shared, kinds, given, stream = line
        assert (x, y, z, warps, shared, kinds) == (2, 1, 1, 4, 0, "OOi") and stream in (5, 7)
        self.launches += 1
        source, out, count = given
        to = _floats(_address(out), count)
        to[:] = [one + number for one in _floats(_address(source), count)]


class StaticallyLaunchedCudaKernel:
    """What Inductor compiled; only its name tells it."""

    def __init__(self, number: float) -> None:
        self.number = number

    C_impl = property(
        lambda self: self.__dict__.get("C_impl", torch._C._StaticCudaLauncher),  # type: ignore[attr-defined]
        lambda self, value: self.__dict__.update(C_impl=value),
    )


class DynamicallyLaunchedKernel(StaticallyLaunchedCudaKernel):
    """Another kind."""


class Kernel:
    """A kernel of Inductor's after its first launch."""

    def __init__(self, number: float, kind: Any = StaticallyLaunchedCudaKernel) -> None:
        config = object()
        self.static = kind(number)
        self.compile_results = [
            SimpleNamespace(config=object(), kernel=None),
            SimpleNamespace(config=config, kernel=self.static),
        ]
        self.launchers = [SimpleNamespace(config=config)]

    def run(self, *given: Any, stream: int) -> None:
        self.static.C_impl._launch_kernel(self.static.number, 2, 1, 1, 4, 0, "OOi", given, stream)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver()
    monkeypatch.setattr(torch._C, "_StaticCudaLauncher", made, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _: 7, raising=False)
    monkeypatch.setattr(torch.cuda, "_DeviceGuard", lambda _: nullcontext())
    monkeypatch.setattr(triton, "__version__", "3.6.0")
    allocate(monkeypatch, lambda size, stride, dtype: torch.empty_strided(size, stride, dtype=dtype))
    return made


def allocate(monkeypatch: pytest.MonkeyPatch, make: Callable[..., torch.Tensor]) -> None:
    """Let generated code get its memory from this, past torch's dispatcher."""

    def empty(*form: Any) -> torch.Tensor:
        with torch._C._DisableTorchDispatch():
            return make(*form)

    monkeypatch.setattr(torch._C._dynamo.guards, "_empty_strided_cuda", empty)


def generated(body: str, **names: Any) -> tuple[Any, dict[str, Any]]:
    """A call with this body, repeated, and the names that it is bound with."""
    names = {
        "torch": torch,
        "noted_empty": repeating.noted_empty,
        "noted_run": repeating.noted_run,
        "written": [],
        **{f"add{number}": Kernel(number) for number in (1, 10, 100, 1000)},
        **names,
    }
    text = "def call(args):\n    written.append(1)\n" + textwrap.indent(textwrap.dedent(body), "    ")
    exec(text, names)
    return repeating.repeated_call(names["call"]), names


def test_a_whole_call_is_repeated_in_memory_that_is_used_again(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However the allocator puts pieces, those that are alive at different times share their place."""
    call, names = generated("""
        x, = args
        args.clear()
        first = noted_empty((256,), (1,), torch.float32)
        noted_run(add1, x, first, 256, stream=5)
        second = noted_empty((256,), (1,), torch.float32)
        noted_run(add10, first, second, 256, stream=5)
        del first
        third = noted_empty((200,), (1,), torch.float32)
        noted_run(add100, second, third, 200, stream=5)
        out = noted_empty((200,), (1,), torch.float32)
        noted_run(add1000, third, out, 200, stream=5)
        part = second[56:]
        del second, third
        more = torch.empty(100)
        noted_run(add1, part, more, 100, stream=5)
        fourth = noted_empty((128,), (1,), torch.float32)
        noted_run(add1, more, fourth, 100, stream=5)
        noted_run(add1, fourth, more, 100, stream=5)
        return (out, more)
    """)
    kept = []
    for base in range(4):
        x = torch.arange(256.0) + base
        out, more = call([x])
        assert out.tolist() == (x[:200] + 1111).tolist() and more.tolist() == (x[56:156] + 14).tolist()
        kept.append((x, out, more))
    assert all(out[0] == x[0] + 1111 and more[0] == x[56] + 14 for x, out, more in kept)
    (notes,) = call.known.values()
    assert len(names["written"]) == 2 and driver.launches == 28
    assert notes.is_whole and len(notes._launches) == 7
    # The third piece takes the place of the first, the fourth as well; the second lies beside it. `part` keeps it alive.
    assert notes._bytes == [2048, 0] and [start for _, start in notes._starts] == [0, 1024, 0, 0, 0, 0]


def test_what_is_freed_before_a_result_is_allocated_lies_in_its_memory(driver: Driver) -> None:
    call, names = generated("""
        x, = args
        large = noted_empty((256,), (1,), torch.float32)
        noted_run(add1, x, large, 256, stream=5)
        small = noted_empty((8,), (1,), torch.float32)
        noted_run(add10, large, small, 8, stream=5)
        del large
        out = noted_empty((256,), (1,), torch.float32)
        noted_run(add100, x, out, 256, stream=5)
        noted_run(add1000, small, out, 8, stream=5)
        return (out,)
    """)
    for base in range(4):
        x = torch.arange(256.0) + base
        assert call([x])[0].tolist() == [*(x[:8] + 1011).tolist(), *(x[8:] + 100).tolist()]
    assert len(names["written"]) == 2
    (notes,) = call.known.values()
    assert notes._bytes == [512, 0] and notes._inside == [(1, 3, 0)]


def test_zeros_are_zeros_at_each_call(driver: Driver) -> None:
    call, names = generated("""
        x, = args
        before = noted_empty((8,), (1,), torch.float32)
        noted_run(add1, x, before, 8, stream=5)
        del before
        zeros = torch.zeros(8)
        out = noted_empty((8,), (1,), torch.float32)
        noted_run(add10, zeros, out, 8, stream=5)
        noted_run(add10, x, zeros, 8, stream=5)
        return (out,)
    """)
    for _ in range(4):
        assert call([torch.ones(8)])[0].tolist() == [10.0] * 8
    assert len(names["written"]) == 2


@pytest.mark.parametrize(
    "body",
    [
        "noted_run(add1, constant, out, 8, stream=5)",
        "noted_run(add1, x, out, 8, stream=5); out.add_(1)",
        "noted_run(Kernel(float(x[0])), x, out, 8, stream=5)",
        "noted_run(add1, x, out, 8, stream=5); return (out[:4],)",
        "noted_run(add1, x, out, 8, stream=5); return (out, 3)",
        "noted_run(add1, x, out, 8, stream=5); return (x.view(2, 4),)",
        "noted_run(other, x, out, 8, stream=5)",
        "noted_run(pair, x, out, 8, stream=5)",
        "noted_run(add1, x, out, 8, stream=5); return (torch.view_as_complex(out.view(4, 2)).conj(),)",
        "noted_run(add1, x, torch.empty(8, device='meta'), out, stream=5)",
    ],
    ids=[
        "memory of its own", "torch's operation", "a value on the host", "a part", "a number", "a view of what is given",
        "another launcher", "two settings", "a conjugate", "another device",
    ],
)  # fmt: skip
def test_a_call_that_does_more_runs_as_written(driver: Driver, body: str) -> None:
    pair = Kernel(1)
    pair.launchers = pair.launchers * 2
    call, names = generated(
        f"""
        x, = args
        out = noted_empty((8,), (1,), torch.float32)
        {body}
        return (out,)
        """,
        constant=torch.ones(8),
        other=Kernel(1, DynamicallyLaunchedKernel),
        pair=pair,
        Kernel=Kernel,
    )
    if "meta" in body:
        names["add1"].run = lambda *given, stream: None
    results = [call([torch.arange(8.0) + base])[0] for base in range(4)]
    assert len(names["written"]) == 4
    assert [(notes.is_whole, notes._launches) for notes in call.known.values()] == [(False, [])]
    if "conj" in body:
        assert results[3].imag[0] == -5.0


def test_given_tensors_that_overlap_or_agree(driver: Driver) -> None:
    call, names = generated("""
        x, y, out = args
        noted_run(add1, x, out[0], 8, stream=5)
        noted_run(add10, y, out[1], 8, stream=5)
        return (out,)
    """)
    memory = torch.arange(16.0)
    for _ in range(3):  # an address in both may be of either
        call([memory[:8], memory[4:12], torch.empty(2, 8)])
    assert len(names["written"]) == 3
    for x, y in ((memory[:8], memory[:8]),) * 3 + ((memory[:8], memory[8:]),) * 3:
        out = torch.empty(2, 8)
        assert call([x, y, out])[0] is out
        assert out.tolist() == [(x + 1).tolist(), (y + 10).tolist()]
    assert len(names["written"]) == 3 + 2 + 3, "the last have the sizes and alignment of the first"


def test_settings_that_operations_look_at_are_part_of_what_is_noted(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, names = generated("""
        x, = args
        out = noted_empty((8,), (1,), torch.float32)
        noted_run(add1 if torch._C._get_cudnn_allow_tf32() else add10, x, out, 8, stream=5)
        return (out,)
    """)
    found = []
    for allowed in (True, True, True, False, False, False):
        monkeypatch.setattr(torch._C, "_get_cudnn_allow_tf32", lambda allowed=allowed: allowed)
        found.append(float(call([torch.zeros(8)])[0][0]))
    assert found == [1, 1, 1, 10, 10, 10] and len(names["written"]) == 4


def test_where_one_large_piece_does_not_fit_the_call_runs_as_written(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, names = generated("""
        x, = args
        between = noted_empty((8,), (1,), torch.float32)
        noted_run(add1, x, between, 8, stream=5)
        out = noted_empty((8,), (1,), torch.float32)
        noted_run(add10, between, out, 8, stream=5)
        return (out,)
    """)
    for _ in range(2):
        call([torch.zeros(8)])

    made: list[Any] = []

    def full(*_: Any, **__: Any) -> torch.Tensor:
        frame = sys._getframe(1)
        while frame.f_code.co_name != "repeat":
            assert frame.f_back is not None
            frame = frame.f_back
        made.extend(map(weakref.ref, frame.f_locals["made"].values()))
        raise torch.OutOfMemoryError

    with monkeypatch.context() as patch:
        patch.setattr(torch, "empty", full)
        names["written"] = Watching(made)
        assert call([torch.zeros(8)])[0].tolist() == [11.0] * 8
        assert names["written"].alive == [0], "the results that were allocated in vain are gone by then"
        names["written"] = [1, 1, 1]
    assert call([torch.zeros(8)])[0].tolist() == [11.0] * 8
    assert len(names["written"]) == 4 and driver.launches == 8


class Watching(list[int]):
    """Counts at each entry how many of these are alive."""

    def __init__(self, references: list[Any]) -> None:
        super().__init__()
        self.references, self.alive = references, list[int]()

    def append(self, entry: int) -> None:
        assert self.references
        self.alive.append(sum(one() is not None for one in self.references))


def test_another_form_of_launcher_is_not_noted(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    class Newer(Kernel):
        def run(self, *given: Any, stream: int) -> None:
            self.static.C_impl._launch_kernel(self.static.number, 2, 1, 1, 4, 0, "OOi", given, stream, False)

    monkeypatch.setattr(Driver, "_launch_kernel", lambda _, *line: _launch(driver, *line[:9]))
    for version in ("3.6.0", "3.8.0"):
        monkeypatch.setattr(triton, "__version__", version)
        call, names = generated(
            """
            x, = args
            out = noted_empty((8,), (1,), torch.float32)
            noted_run(newer, x, out, 8, stream=5)
            return (out,)
            """,
            newer=Newer(1),
        )
        for base in range(4):
            assert call([torch.arange(8.0) + base])[0][0] == base + 1
        assert len(names["written"]) == 4


_launch = Driver._launch_kernel


def test_a_call_that_raises_while_it_is_noted_can_be_noted_again(driver: Driver) -> None:
    call, names = generated(
        """
        x, = args
        out = noted_empty((8,), (1,), torch.float32)
        noted_run(add1, x, out, 8, stream=5)
        if len(written) in fails:
            raise ValueError("planted")
        return (out,)
        """,
        fails=[2, 3],
    )
    for attempt in range(1, 7):
        if attempt in (2, 3):
            with pytest.raises(ValueError, match="planted"):
                call([torch.zeros(8)])
        else:
            assert call([torch.zeros(8)])[0][0] == 1
    assert len(names["written"]) == 4 and len(repeating._turns) == 1


def test_threads_and_calls_within_calls_are_noted_apart(driver: Driver) -> None:
    """Another thread launches the same kernel meanwhile, and allocates; a call within a call is a part of it."""
    inner, inner_names = generated("""
        x, = args
        out = noted_empty((8,), (1,), torch.float32)
        noted_run(add10, x, out, 8, stream=5)
        return (out,)
    """)
    other = torch.ones(8)

    class Busy(Kernel):
        def run(self, *given: Any, stream: int) -> None:
            def elsewhere() -> None:
                out = repeating.noted_empty((8,), (1,), torch.float32)
                Kernel.run(self, other, out, 8, stream=5)

            thread = threading.Thread(target=elsewhere)
            thread.start()
            thread.join()
            super().run(*given, stream=stream)

    call, names = generated(
        """
        x, = args
        between, = inner([x])
        out = noted_empty((8,), (1,), torch.float32)
        noted_run(add1, between, out, 8, stream=5)
        return (out,)
        """,
        add1=Busy(1),
        inner=inner,
    )
    for base in range(3):
        x = torch.arange(8.0) + base
        assert call([x])[0].tolist() == (x + 11).tolist()
    assert len(names["written"]) == len(inner_names["written"]) == 2
    (notes,) = call.known.values()
    assert notes.is_whole and len(notes._launches) == 2 and notes._bytes == [512, 0]


def test_a_kernel_of_several_sizes_is_noted_as_the_one_that_it_chooses(driver: Driver) -> None:
    from agent.compiler.sandboxed.sized_kernel import SizedKernel  # loads the compiler

    sized = object.__new__(SizedKernel)
    sized.sizes, sized.recent = ["xnumel"], {(8,): Kernel(1), (4,): Kernel(10)}
    call, names = generated(
        """
        x, = args
        out = noted_empty((x.numel(),), (1,), torch.float32)
        noted_run(sized, x, out, x.numel(), stream=5)
        return (out,)
        """,
        sized=sized,
    )
    for size, added in ((8, 1), (4, 10)) * 3:
        assert call([torch.zeros(size)])[0].tolist() == [float(added)] * size
    assert len(names["written"]) == 4 and all(notes.is_whole for notes in call.known.values())


def test_only_so_many_calls_are_remembered(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeating, "_MOST_CALLS", 3)
    call, _ = generated("return (args[0],)")
    for size in range(1, 9):
        for _ in range(3):
            call([torch.zeros(size)])
    assert len(call.known) <= 3


MODULE = """\
import torch
empty_strided_cuda = torch._C._dynamo.guards._empty_strided_cuda

def call(args):
    arg0_1, arg1_1 = args
    args.clear()
    s0 = arg0_1.size(0)
    with torch.cuda._DeviceGuard(0):
        torch.cuda.set_device(0)
        buf0 = empty_strided_cuda((s0, 8), (8, 1), torch.float32)
        extern_kernels.mm(arg0_1, arg1_1, out=buf0)
        stream0 = get_raw_stream(0)
        triton_poi_fused_0.run(buf0, 8*s0, stream=stream0)
        {more}
    return (buf0, )
"""


@pytest.mark.parametrize(
    ("more", "is_noted"),
    [
        ("del arg0_1", True),
        ("buf1 = torch.ops.aten.sort.default(buf0)", False),
        ("cpp_fused_0(buf0)", False),
        ("my_kernel[(1,)](buf0)", False),
        ("buf0.untyped_storage().resize_(0)", False),
        ("other.run(buf0, stream=stream0, more=1)", False),
        ("other.run(buf0, more=1, stream=stream0)", False),
        ("buf0.data = arg0_1", False),
        ("extern_kernels.fallback(buf0)", False),
    ],
)
def test_generated_code_is_repeated_if_it_does_nothing_unknown(more: str, is_noted: bool) -> None:
    text, operations = with_library(MODULE.format(more=more))
    assert operations == ("mm",)
    assert ("\n_kw_call = repeated_call(call)\n" in text) == is_noted
    assert ("noted_run(triton_poi_fused_0, buf0, 8*s0, stream=stream0)" in text) == is_noted
    assert ("buf0 = noted_empty((s0, 8), (8, 1), torch.float32)" in text) == is_noted
    assert launching.Notes.__name__ in text


@pytest.mark.parametrize(
    "behind",
    ["call = wrapped(call)", "def call_backward(args):\n    triton_poi_fused_0.run(args, stream=stream0)"],
    ids=["bound twice", "a backward"],
)
def test_other_modules_stay_as_they_are(behind: str) -> None:
    text, operations = with_library(f"{MODULE.format(more='del arg0_1')}\n{behind}\n")
    assert operations == ("mm",) and "_kw_call" not in text
    assert "buf0 = empty_strided_cuda((s0, 8), (8, 1), torch.float32)" in text


def test_the_source_of_a_kernel_is_left_alone() -> None:
    kernel = "triton_poi_fused_0 = async_compile.triton('name', '''\n    this.run(x, stream=stream0)\n''')\n"
    text, _ = with_library(
        MODULE.replace("import torch\n", f"import torch\n{kernel}").format(more="del arg0_1")
    )
    assert "_kw_call" in text and "\n    this.run(x, stream=stream0)\n" in text
