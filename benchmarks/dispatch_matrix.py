"""The matrix of an operation: every variant of it timed at many shapes, all taking turns within one process, round by round."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch

from benchmarks.dispatch_variants import Variant

_BLOCK_S = 0.0015
_BLOCK_OUTPUT_BYTES = 64 << 20
#: Several processes may prepare beside each other.
_MOST_RESERVED_BYTES = 8 << 30
#: A variant so many times slower than the fastest at a first look is not timed again: it plays no part at that shape.
_HOPELESS = 8.0


class Timed(Protocol):
    """What a matrix is made of: `benchmarks.dispatch_variants.Operation`, or a task of the catalogue.

    Attributes:
        name: for tables.
        inputs: the axes of each input by dimension; empty where they do not matter.
        inside: how many calls of the operation one call of a variant makes.
        tolerance: by how much variants may differ.
    """

    @property
    def name(self) -> str: ...
    @property
    def inputs(self) -> Sequence[tuple[str, ...]]: ...
    @property
    def inside(self) -> int: ...
    @property
    def tolerance(self) -> float: ...

    def draw(self, count: int, seed: int) -> list[dict[str, int]]:
        """So many different shapes."""
        ...

    def make(self, shape: Mapping[str, int], device: str) -> list[Any]:
        """Inputs of a shape."""
        ...

    def variants_at(self, shape: Mapping[str, int], device: str) -> list[Variant]:
        """All variants, in the same order at each shape."""
        ...


class TimeIsUp(Exception):
    """The seconds ended before the matrix was whole."""


def block_us(variant: Variant, inputs: Sequence[list[Any]], calls: int, device: str) -> float:
    """Microseconds a call over one block; inputs rotate, and outputs live until the end."""
    outputs = []
    begin = time.perf_counter()
    for index in range(calls):
        outputs.append(variant.call(*inputs[index % len(inputs)]))
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - begin) / calls * 1e6


def time_shape(operation: Timed, shape: Mapping[str, int], rounds: int, device: str) -> list[list[float]]:
    """Microseconds a call of each variant in each round.

    Raises:
        AssertionError: if a variant computes something else than the reference.
    """
    variants, inputs, most = _ready(operation, shape, device)
    guesses_us = [min(block_us(variant, inputs, 1, device) for _ in range(3)) for variant in variants]
    samples: list[list[float]] = [[] for _ in variants]
    order = list(range(len(variants)))
    for _ in range(rounds):
        random.shuffle(order)
        for place in order:
            if guesses_us[place] > _HOPELESS * min(guesses_us):
                samples[place].append(guesses_us[place])
                continue
            calls = max(1, min(int(_BLOCK_S * 1e6 / max(guesses_us[place], 1.0)), most))
            block_us(variants[place], inputs, 1, device)
            samples[place].append(block_us(variants[place], inputs, calls, device))
    return samples


def _ready(
    operation: Timed, shape: Mapping[str, int], device: str
) -> tuple[list[Variant], list[list[Any]], int]:
    """The variants, seen to compute the same; inputs; and how many calls a block may have at most."""
    variants = operation.variants_at(shape, device)
    first = operation.make(shape, device)
    # A graph is captured for each on a GPU, which takes longer than all of its replays.
    copies = 1 if device == "cuda" else max(1, min(8, (2 << 20) // max(_bytes(first), 1)))
    inputs = [first, *(operation.make(shape, device) for _ in range(copies - 1))]
    expected = next(one for one in variants if one.reference).call(*first)
    for variant in variants:
        assert_same(variant.call(*first), expected, operation.tolerance, f"{operation.name}: {variant.name}")
    return variants, inputs, min(_BLOCK_OUTPUT_BYTES // max(_bytes(expected), 1), 200)


def assert_same(result: Any, expected: Any, tolerance: float, name: str) -> None:
    """Tensors within the tolerance; codes, places and bytes may differ in one of two hundred, as rounding has it."""
    results, wanted = _tensors(result), _tensors(expected)
    assert len(results) == len(wanted), name
    for one, other in zip(results, wanted, strict=True):
        if other.dtype in (torch.float32, torch.bfloat16, torch.float16, torch.complex64):
            torch.testing.assert_close(
                one, other, rtol=tolerance, atol=tolerance, equal_nan=True, msg=lambda text: f"{name}: {text}"
            )
        else:
            differ = (one.view(torch.uint8) != other.view(torch.uint8)).float().mean().item()
            assert differ <= 0.005, f"{name}: {differ:.1%} of the bytes differ"


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for item in value for tensor in _tensors(item)] if isinstance(value, (list, tuple)) else []


def _bytes(value: Any) -> int:
    return sum(tensor.nbytes for tensor in _tensors(value))


def _let_go(device: str) -> None:
    """Graphs of a shape that is done, with the memory that each of them keeps."""
    if device == "cuda":
        gc.collect()
        if torch.cuda.memory_reserved() > _MOST_RESERVED_BYTES:
            torch.cuda.empty_cache()


def prepare(operation: Timed, count: int, seed: int, device: str, part: tuple[int, int] = (1, 1)) -> None:
    """Have everything compiled that the matrix will need, without timing: several processes may do so beside each other.

    Args:
        operation: what will be timed.
        count: of the shapes.
        seed: of the shapes.
        device: cpu or cuda.
        part: which part of the shapes, of how many.
    """
    at, parts = part
    with torch.no_grad():
        for shape in operation.draw(count, seed)[at - 1 :: parts]:
            _ready(operation, shape, device)
            _let_go(device)


def measure(
    operation: Timed,
    counts: tuple[int, int],
    rounds: int,
    seed: int,
    device: str,
    until_s: float,
    more_rounds: int = 0,
) -> dict[str, Any]:
    """The matrix of one operation: the shapes to build from first, then the held-out ones.

    Args:
        operation: what is timed.
        counts: shapes to build from, and held-out ones.
        rounds: blocks of each variant at each shape.
        seed: of the shapes.
        device: cpu or cuda.
        until_s: on `time.monotonic`'s clock.
        more_rounds: further ones at the held-out shapes, kept apart: what `verified` mode would see and bring there.

    Raises:
        TimeIsUp: before the last shape.
    """
    shapes = operation.draw(sum(counts), seed)
    samples: list[list[list[float]]] = []
    more: list[list[list[float]]] = []
    with torch.no_grad():
        for shape in shapes:
            if time.monotonic() > until_s:
                raise TimeIsUp(f"{operation.name}: {len(samples)} of {len(shapes)} shapes")
            held_out = len(samples) >= counts[0]
            timed = time_shape(operation, shape, rounds + (more_rounds if held_out else 0), device)
            samples.append([row[:rounds] for row in timed])
            if held_out and more_rounds:
                more.append([row[rounds:] for row in timed])
            _let_go(device)
        variants = operation.variants_at(shapes[0], device)
    return {
        "inputs": [list(axes) for axes in operation.inputs],
        "variants": [
            {"name": one.name, "baseline": one.baseline, "reference": one.reference} for one in variants
        ],
        "shapes": shapes,
        "building": counts[0],
        "us": _rounded(samples, operation.inside),
        "more_us": _rounded(more, operation.inside),
    }


def _rounded(samples: Sequence[Sequence[Sequence[float]]], inside: int) -> list[list[list[float]]]:
    """Microseconds of one call."""
    return [[[float(f"{us / inside:.4g}") for us in row] for row in one] for one in samples]
