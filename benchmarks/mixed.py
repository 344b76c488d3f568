"""Sixty candidates as a search proposes them: half right in several languages, half wrong in realistic ways, no two alike."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from benchmarks import row_kernels
from tests.corpus import controls, corpus

#: Tasks of the catalogue that the mix is about.
TASKS = ("layernorm_relu_add", "rmsnorm", "row_sum", "swiglu", "bias_gelu", "cross_entropy", "softmax")
_ACCEPTED = frozenset({"accepted"})
#: What a wrong answer may be called.
_WRONG = frozenset({"incorrect", "contract_violation", "cheating", "runtime_error"})
_FAILS = frozenset({"runtime_error", "compile_error"})
_BROKEN = frozenset({"contract_violation"})


@dataclass(frozen=True)
class Candidate:
    """One line of the manifest.

    Attributes:
        name: unique.
        task: of the catalogue.
        source: its text.
        kind: what it stands for.
        expected: the verdicts that are right.
    """

    name: str
    task: str
    source: str
    kind: str
    expected: frozenset[str]


def mix(device: str, count: int, seed: int, mark: str, tasks: tuple[str, ...] = TASKS) -> list[Candidate]:
    """So many candidates, half of them right, in random order.

    Args:
        device: ``cpu`` or ``cuda``.
        count: how many.
        seed: of the order and the choice.
        mark: stands in every text, so that none has been seen in an earlier run.
        tasks: some of :data:`TASKS`, the first three among them.
    """
    draw = random.Random(seed)
    right = _shared_out(_right(device, mark, draw, tasks), count - count // 2)
    wrong = _shared_out(_wrong(device, mark, draw, tasks), count // 2)
    chosen = [
        Candidate(
            f"{number:03}-{one.name}", one.task, f"{one.source}\n# {mark} {number}\n", one.kind, one.expected
        )
        for number, one in enumerate([*right, *wrong])
    ]
    draw.shuffle(chosen)
    return chosen


def one_per_task(device: str, mark: str, tasks: tuple[str, ...] = TASKS) -> list[Candidate]:
    """A right candidate for each task, which makes referees open it and compile its baselines."""
    found = {}
    for entry in controls.every():
        if entry.task in tasks and entry.language == "torch" and entry.runs_on(device) and not entry.compiles:
            found.setdefault(entry.task, entry)
    return [
        Candidate(f"first-{task}", task, f"{entry.source}\n# {mark}\n", "torch", _ACCEPTED)
        for task, entry in found.items()
    ]


def _shared_out(kinds: list[tuple[float, Iterator[Candidate]]], count: int) -> list[Candidate]:
    """So many in all, each kind by its share; what rounding leaves goes to the first kinds."""
    whole = sum(share for share, _ in kinds)
    numbers = [int(count * share / whole) for share, _ in kinds]
    for place in range(count - sum(numbers)):
        numbers[place % len(numbers)] += 1
    return [
        one
        for number, (_, source) in zip(numbers, kinds, strict=True)
        for one in itertools.islice(source, number)
    ]


def _entries(
    entries: list[corpus.Entry], kind: str, expected: frozenset[str], draw: random.Random
) -> Iterator[Candidate]:
    """The entries in random order, again and again."""
    while True:
        for entry in draw.sample(entries, len(entries)):
            yield Candidate(entry.name, entry.task, entry.source, kind, expected)


def _kernels(make: Callable[[str, str, int], str], kind: str, mark: str) -> Iterator[Candidate]:
    for number in itertools.count():
        task, threads = row_kernels.TASKS[number % 3], (256, 128, 512)[number // 3 % 3]
        yield Candidate(
            f"{kind}-{task}-{threads}", task, make(task, f"{mark} {number}", threads), kind, _ACCEPTED
        )


def _right(
    device: str, mark: str, draw: random.Random, tasks: tuple[str, ...]
) -> list[tuple[float, Iterator[Candidate]]]:
    entries = [e for e in controls.every() if e.task in tasks and e.runs_on(device) and not e.compiles]
    torch = [e for e in entries if e.language == "torch"]
    triton = [e for e in entries if e.language == "triton"]
    shares = [
        (0.4, _entries(triton, "triton", _ACCEPTED, draw)),
        (0.3, _entries(torch, "torch", _ACCEPTED, draw)),
    ]
    if device == "cuda":
        shares.append((0.15, _kernels(row_kernels.nvrtc, "nvrtc", mark)))
        shares.append((0.15, _kernels(row_kernels.inline, "load_inline", mark)))
    return shares


def _wrong(
    device: str, mark: str, draw: random.Random, tasks: tuple[str, ...]
) -> list[tuple[float, Iterator[Candidate]]]:
    bugs = [e for e in corpus.bugs() if e.task in tasks and e.runs_on(device) and not e.compiles]
    entries = [e for e in controls.every() if e.task in tasks and e.runs_on(device) and not e.compiles]
    torch = [e for e in entries if e.language == "torch" and e.kind == "plain"]
    triton = [e for e in entries if e.language == "triton" and "tl.store(y +" in e.source]
    shares = [
        (0.5, _entries(bugs, "slip", _WRONG, draw)),
        (
            0.1,
            _changed(
                torch, "no syntax", _BROKEN, draw, ("class ModelNew(nn.Module):", "class ModelNew(nn.Module)")
            ),
        ),
        (0.1, _wrapped(torch, "wrong shape", _BROKEN, draw, "return right(self, *inputs).unsqueeze(0)")),
        (0.1, _wrapped(torch, "raises", _FAILS, draw, "return right(self, *inputs).no_such_method()")),
        (
            0.1,
            _changed(
                triton, "triton does not compile", _FAILS, draw, ("tl.store(y +", "tl.store(undefined +")
            ),
        ),
        (
            0.05,
            _changed(triton, "illegal access", _FAILS, draw, ("tl.store(y +", "tl.store(y + (1 << 40) +")),
        ),
    ]
    if device == "cuda":
        shares.append((0.05, _uncompilable(mark)))
    return shares


def _changed(
    entries: list[corpus.Entry],
    kind: str,
    expected: frozenset[str],
    draw: random.Random,
    change: tuple[str, str],
) -> Iterator[Candidate]:
    for one in _entries(entries, kind, expected, draw):
        assert change[0] in one.source, (one.name, change)
        yield Candidate(f"{one.name}-{kind}", one.task, one.source.replace(*change), kind, expected)


def _wrapped(
    entries: list[corpus.Entry], kind: str, expected: frozenset[str], draw: random.Random, body: str
) -> Iterator[Candidate]:
    for one in _entries(entries, kind, expected, draw):
        tail = f"\nright = ModelNew.forward\n\n\ndef forward(self, *inputs):\n    {body}\n\n\nModelNew.forward = forward\n"
        yield Candidate(f"{one.name}-{kind}", one.task, one.source + tail, kind, expected)


def _uncompilable(mark: str) -> Iterator[Candidate]:
    for one in _kernels(row_kernels.inline, "nvcc fails", mark):
        source = one.source.replace("return y;", "return undefined;")
        yield Candidate(one.name, one.task, source, one.kind, frozenset({"compile_error"}))
