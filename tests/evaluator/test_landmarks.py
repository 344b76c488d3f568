"""What a role says must not change in it: every way of putting something else in the harness's place is seen."""

from __future__ import annotations

import builtins
import ctypes
import errno
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from evaluator.devices.cuda import chain as device_chain
from evaluator.devices.cuda import gate as device_gate
from evaluator.errors import RoleFailure
from evaluator.referee.session import landmarks as referee_landmarks
from evaluator.referee.session.outcome import Rejected
from evaluator.roles import blocks, chain, landmarks, module_host, protocol, turns
from evaluator.sandbox.syscalls import Gatherer


class _Harness:
    """A host with its operations, as :func:`evaluator.roles.runner.serve` has them, and what is read of it."""

    def __init__(self, library: str, device: str = "cpu") -> None:
        self.host = turns.Turns(torch.device(device), library)
        self.library = library
        self.operations: dict[int, Callable[..., bytes]] = {1: self.host.block, 2: self.host.ready}
        payload = landmarks.report(self.host, self.operations, library)
        numbers = struct.unpack(f"<{len(payload) // 8}Q", payload)
        self._gatherer = Gatherer(os.getpid(), list(zip(numbers[::2], numbers[1::2], strict=True)))
        self._before = self._gatherer.read()

    @property
    def changed(self) -> bool:
        return self._gatherer.read() != self._before


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> _Harness:
    library = chain.build(tmp_path_factory.mktemp("trusted"))
    if library is None:
        pytest.skip("no C compiler on PATH")
    return _Harness(library)


def _impostor(*arguments: Any) -> Any:
    return None


@contextmanager
def _in_place_of(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    yield
    setattr(owner, name, before)


@contextmanager
def _added(owner: Any, name: str) -> Iterator[None]:
    """A name that hides an inherited or a built-in one."""
    setattr(owner, name, _impostor)
    yield
    delattr(owner, name)


@contextmanager
def _hiding(harness: _Harness) -> Iterator[None]:
    harness.host.block = _impostor  # type: ignore[method-assign]
    yield
    del harness.host.block


@contextmanager
def _other_operation(harness: _Harness) -> Iterator[None]:
    before = harness.operations[1]
    harness.operations[1] = _impostor
    yield
    harness.operations[1] = before


@contextmanager
def _other_function_of_c(harness: _Harness) -> Iterator[None]:
    held = ctypes.c_uint64.from_address(ctypes.addressof(harness.host.chain.walk))  # type: ignore[attr-defined]
    before, held.value = held.value, 1
    yield
    held.value = before


class _zip(zip):
    pass


class _OtherTurns(turns.Turns):
    pass


PLANTED: dict[str, Callable[[_Harness], Any]] = {
    "a function of a module": lambda at: _in_place_of(blocks, "run", _impostor),
    "what a function is made of": lambda at: _in_place_of(blocks.run, "__code__", _impostor.__code__),
    "its defaults": lambda at: _in_place_of(blocks.structure, "__defaults__", (3,)),
    "a method of a class": lambda at: _in_place_of(turns.Turns, "block", _impostor),
    "a method that hides an inherited one": lambda at: _added(module_host.ModuleHost, "block"),
    "a name that hides a built-in one": lambda at: _added(blocks, "len"),
    "a built-in name": lambda at: _in_place_of(builtins, "zip", _zip),
    "a method of one object": _hiding,
    "the class of an object": lambda at: _in_place_of(at.host, "__class__", _OtherTurns),
    "what serves a request": _other_operation,
    "what reads a request": lambda at: _in_place_of(protocol, "loads", _impostor),
    "the loop": lambda at: _in_place_of(at.host.chain, "walk", _impostor),
    "the address of the loop": _other_function_of_c,
    "the chain": lambda at: _in_place_of(at.host, "chain", chain.NumpyChain()),
}


#: Of what a timed block passes through on a GPU. A link that begins when somebody says looks at words that are known beforehand.
PLANTED_GPU: dict[str, Callable[[], Any]] = {
    "when a link begins": lambda: _in_place_of(device_chain.States.link, "__defaults__", (0,)),
    "a link": lambda: _in_place_of(device_chain.States, "link", _impostor),
    "of how many outputs a link is": lambda: _in_place_of(device_chain, "_PER_LINK", 1),
    "what launches it": lambda: _in_place_of(device_chain._Launcher, "__call__", _impostor),
    "what keeps its states": lambda: _in_place_of(device_chain, "block_states", _impostor),
    "what a gate asks of the driver": lambda: _in_place_of(device_gate, "call", _impostor),
}


@pytest.mark.parametrize("what", PLANTED_GPU)
def test_whatever_is_put_in_its_place_on_a_gpu_is_seen(harness: _Harness, what: str) -> None:
    on_gpu = _Harness(harness.library, "cuda")
    assert not on_gpu.changed
    with PLANTED_GPU[what]():
        assert on_gpu.changed
    assert not on_gpu.changed


@pytest.mark.parametrize("what", PLANTED)
def test_whatever_is_put_in_its_place_is_seen(harness: _Harness, what: str) -> None:
    assert not harness.changed
    with PLANTED[what](harness):
        assert harness.changed
    assert not harness.changed


def test_work_changes_nothing(harness: _Harness) -> None:
    """Functions get warm, data of the host change, a module warns."""
    import warnings

    chained = harness.host.chain
    argument, pool = torch.randn(4, 8), torch.randn(16)
    slots = [blocks.Slot([argument], [argument], [(0, pool, 7, 0)])] * 200
    module = torch.nn.LayerNorm(8)
    for _ in range(20):
        blocks.run(module, slots, chained, 5, True, torch.device("cpu"))
    harness.host.shapes[3] = turns.Shape()
    with pytest.warns(UserWarning, match="text"):
        warnings.warn_explicit("text", UserWarning, "file", 1, registry=vars(blocks)["__warningregistry__"])
    assert not harness.changed


def test_memory_that_is_gone_is_told() -> None:
    with pytest.raises(OSError, match="process_vm_readv"):
        Gatherer(os.getpid(), [(id(Path), 8), (8, 8)]).read()


def test_the_loop_of_c_does_what_the_loop_of_python_does(
    harness: _Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outputs, states and what is written to the inputs; also of several outputs, numbers and tensors that are not contiguous.

    When calls returned is no part of that: the second loop is told when those of the first one did.
    """

    def several(x: torch.Tensor) -> Any:
        return {"b": (x * 2, 3.0), "a": x[:, ::2] + 1}

    for forward in (torch.nn.LayerNorm(8), lambda x: (x + 1, x.T * 3), several):
        found = []
        for made in (harness.host.chain, chain.NumpyChain()):
            torch.manual_seed(1)
            arguments, pool = [torch.randn(4, 8) for _ in range(6)], torch.randn(16)
            slots = [blocks.Slot([x], [x], [(0, pool, 5, 0)]) for x in arguments]
            if found:
                whens = iter([chain.when_of(state) for state in found[0][1]])
                monkeypatch.setattr(blocks, "now", whens.__next__)
            outputs, states = blocks.run(forward, slots, made, 9, True, torch.device("cpu"))
            monkeypatch.undo()
            found.append((outputs, states, arguments))
        (outputs, states, arguments), (expected, expected_states, expected_arguments) = found
        assert states == expected_states
        assert len({chain.when_of(state) for state in states}) > 1
        assert all(map(torch.equal, arguments, expected_arguments))
        for row, expected_row in zip(outputs, expected, strict=True):
            assert all(map(torch.equal, row, expected_row))


def test_what_a_call_raises_is_raised(harness: _Harness) -> None:
    def fails(x: torch.Tensor) -> torch.Tensor:
        raise KeyError("seen")

    def changes(x: torch.Tensor, seen: list[int] = []) -> list[torch.Tensor]:  # noqa: B006
        seen.append(1)
        return [x] * len(seen)

    argument = torch.randn(4, 8)
    slots = [blocks.Slot([argument], [argument], [(0, torch.randn(16), 5, 0)])] * 3
    device = torch.device("cpu")
    with pytest.raises(KeyError, match="seen"):
        blocks.run(fails, slots, harness.host.chain, 1, True, device)
    with pytest.raises(blocks.ContractError, match="number of outputs"):
        blocks.run(changes, slots, harness.host.chain, 1, True, device)
    with pytest.raises(blocks.ContractError, match="not a tensor"):
        blocks.run(lambda x: {1}, slots, harness.host.chain, 1, True, device)


class _Reader:
    """Reads like a gatherer, then fails."""

    def __init__(self, error: int) -> None:
        self._error = error
        self._times = 0

    def read(self) -> bytes:
        self._times += 1
        if self._times > 1:
            raise OSError(self._error, os.strerror(self._error))
        return b"words"


class _Alive:
    """A process that sends one landmark."""

    dead, pid, name = False, 1, "candidate"

    def request(self, *_: Any) -> bytes:
        return struct.pack("<2Q", 4096, 8)

    def freeze(self) -> None: ...


@pytest.mark.parametrize(
    ("error", "raised"),
    [(errno.EPERM, Rejected), (errno.EFAULT, Rejected), (errno.ENOMEM, RoleFailure), (errno.ESRCH, None)],
)
def test_memory_that_cannot_be_read_any_more(
    monkeypatch: pytest.MonkeyPatch, error: int, raised: type[Exception] | None
) -> None:
    """A process that forbids to be looked at (not dumpable) gains nothing; one that is gone says so with its next answer."""
    monkeypatch.setattr(referee_landmarks.syscalls, "Gatherer", lambda *_: _Reader(error))
    watched = referee_landmarks.Landmarks(_Alive())  # type: ignore[arg-type]
    if raised is None:
        watched.check()
        return
    with pytest.raises(raised):
        watched.check()
