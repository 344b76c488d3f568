"""Own variants of three operations on a CPU: no one of them is the fastest everywhere, which is what a dispatcher is for."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

import torch
import torch.nn.functional as F

Call = Callable[..., Any]
_TIERS = (1, 2, 4, 8, 16, 64, 128)


@dataclass(frozen=True)
class Variant:
    """One way to compute an operation.

    Attributes:
        name: for tables.
        call: takes the inputs.
        baseline: whether it is a way to run the reference that anybody has; of these the fastest at a shape is the best baseline.
        reference: whether it is the plain reference, the fall-back of a dispatcher.
    """

    name: str
    call: Call
    baseline: bool = False
    reference: bool = False


@dataclass(frozen=True)
class Operation:
    """An operation with its sizes.

    Attributes:
        name: for tables.
        dims: lowest and highest value of each dimension.
        inputs: the axes of each input, by dimension.
        variants: makes the variants.
        most_elements: of all inputs together.
        dtype: of all inputs.
        inside: how many calls of the operation one call of a variant makes.
    """

    name: str
    dims: Mapping[str, tuple[int, int]]
    inputs: Sequence[tuple[str, ...]]
    variants: Callable[[], list[Variant]]
    most_elements: int = 4 << 20
    dtype: torch.dtype = field(default=torch.float32)
    inside: int = 1

    def make(self, shape: Mapping[str, int], device: str) -> list[torch.Tensor]:
        """Inputs of one shape."""
        return [
            torch.rand([shape[axis] for axis in axes], device=device, dtype=self.dtype) + 0.5
            for axes in self.inputs
        ]

    def draw(self, count: int, seed: int) -> list[dict[str, int]]:
        """Log-uniform sizes, each on an alignment tier, without repeats and below the limit of elements."""
        generator = random.Random(seed)
        shapes: list[dict[str, int]] = []
        while len(shapes) < count:
            shape = {}
            for name, (low, high) in self.dims.items():
                size = 2 ** generator.uniform(math.log2(low), math.log2(high))
                tier = generator.choice(_TIERS)
                shape[name] = min(max(round(size / tier) * tier, low), high)
            elements = sum(math.prod(shape[axis] for axis in axes) for axes in self.inputs)
            if elements <= self.most_elements and shape not in shapes:
                shapes.append(shape)
        return shapes

    def variants_at(self, shape: Mapping[str, int], device: str) -> list[Variant]:
        """The variants; they are the same at every shape and on every device."""
        return self._made

    @cached_property
    def _made(self) -> list[Variant]:
        return self.variants()

    @property
    def tolerance(self) -> float:
        """By how much variants may differ."""
        return 1e-4 if self.dtype == torch.float32 else 2e-2


_SOURCE = """
#include <torch/extension.h>
#include <cmath>
#include <omp.h>

static void norm_row(const float* x, const float* w, float* y, int64_t cols) {
  float squares = 0.f;
  for (int64_t i = 0; i < cols; ++i) squares += x[i] * x[i];
  const float scale = 1.f / std::sqrt(squares / cols + 1e-6f);
  for (int64_t i = 0; i < cols; ++i) y[i] = x[i] * scale * w[i];
}

static void soft_row(const float* x, float* y, int64_t cols) {
  float top = x[0];
  for (int64_t i = 1; i < cols; ++i) top = std::max(top, x[i]);
  float sum = 0.f;
  for (int64_t i = 0; i < cols; ++i) { y[i] = std::exp(x[i] - top); sum += y[i]; }
  const float scale = 1.f / sum;
  for (int64_t i = 0; i < cols; ++i) y[i] *= scale;
}

// Rows are shared out among threads.
torch::Tensor norm_rows(torch::Tensor x, torch::Tensor w, int64_t threads) {
  auto y = torch::empty_like(x);
  const int64_t rows = x.size(0), cols = x.size(1);
  const float *a = x.data_ptr<float>(), *b = w.data_ptr<float>();
  float* c = y.data_ptr<float>();
  if (threads == 1) {
    for (int64_t r = 0; r < rows; ++r) norm_row(a + r * cols, b, c + r * cols, cols);
  } else {
    #pragma omp parallel for num_threads(threads)
    for (int64_t r = 0; r < rows; ++r) norm_row(a + r * cols, b, c + r * cols, cols);
  }
  return y;
}

// Every row is shared out among threads: for few long rows.
torch::Tensor norm_cols(torch::Tensor x, torch::Tensor w, int64_t threads) {
  auto y = torch::empty_like(x);
  const int64_t rows = x.size(0), cols = x.size(1);
  const float *a = x.data_ptr<float>(), *b = w.data_ptr<float>();
  float* c = y.data_ptr<float>();
  for (int64_t r = 0; r < rows; ++r) {
    const float* x_ = a + r * cols; float* y_ = c + r * cols; float squares = 0.f;
    #pragma omp parallel for num_threads(threads) reduction(+ : squares)
    for (int64_t i = 0; i < cols; ++i) squares += x_[i] * x_[i];
    const float scale = 1.f / std::sqrt(squares / cols + 1e-6f);
    #pragma omp parallel for num_threads(threads)
    for (int64_t i = 0; i < cols; ++i) y_[i] = x_[i] * scale * b[i];
  }
  return y;
}

torch::Tensor soft_rows(torch::Tensor x, int64_t threads) {
  auto y = torch::empty_like(x);
  const int64_t rows = x.size(0), cols = x.size(1);
  const float* a = x.data_ptr<float>();
  float* c = y.data_ptr<float>();
  if (threads == 1) {
    for (int64_t r = 0; r < rows; ++r) soft_row(a + r * cols, c + r * cols, cols);
  } else {
    #pragma omp parallel for num_threads(threads)
    for (int64_t r = 0; r < rows; ++r) soft_row(a + r * cols, c + r * cols, cols);
  }
  return y;
}
"""


@cache
def extension() -> Any:
    """The C++ variants, built once."""
    from torch.utils.cpp_extension import load_inline

    return load_inline(
        "kernelwright_dispatch",
        cpp_sources=_SOURCE,
        functions=["norm_rows", "norm_cols", "soft_rows"],
        extra_cflags=["-O3", "-march=native", "-ffast-math", "-fopenmp"],
    )


def on_one_thread(call: Call) -> Call:
    """The same without threads; what it costs to say so is part of it."""

    def one(*inputs: torch.Tensor) -> torch.Tensor:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return call(*inputs)
        finally:
            torch.set_num_threads(threads)

    return one


def compiled(call: Call) -> Call:
    """One code for all sizes."""
    return torch.compile(call, dynamic=True)


def rmsnorm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """The reference."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w


def rmsnorm_variants() -> list[Variant]:
    """Ten, three of them baselines."""
    own = extension()

    def by_norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        squares = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_()
        return (x * squares.div_(x.shape[1]).add_(1e-6).rsqrt_()).mul_(w)

    def fused(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (x.shape[1],), w, 1e-6)

    return [
        Variant("eager", rmsnorm, baseline=True, reference=True),
        Variant("eager 1t", on_one_thread(rmsnorm), baseline=True),
        Variant("compile dynamic", compiled(rmsnorm), baseline=True),
        Variant("vector_norm", by_norm),
        Variant("vector_norm 1t", on_one_thread(by_norm)),
        Variant("F.rms_norm", fused),
        Variant("C++ 1t", lambda x, w: own.norm_rows(x, w, 1)),
        Variant("C++ rows 2t", lambda x, w: own.norm_rows(x, w, 2)),
        Variant("C++ cols 2t", lambda x, w: own.norm_cols(x, w, 2)),
    ]


def softmax(x: torch.Tensor) -> torch.Tensor:
    """The reference."""
    return torch.softmax(x, dim=-1)


def softmax_variants() -> list[Variant]:
    """Eight, three of them baselines."""
    own = extension()

    def by_parts(x: torch.Tensor) -> torch.Tensor:
        y = (x - x.amax(-1, keepdim=True)).exp_()
        return y.div_(y.sum(-1, keepdim=True))

    return [
        Variant("eager", softmax, baseline=True, reference=True),
        Variant("eager 1t", on_one_thread(softmax), baseline=True),
        Variant("compile dynamic", compiled(softmax), baseline=True),
        Variant("by parts", by_parts),
        Variant("by parts 1t", on_one_thread(by_parts)),
        Variant("exp(log_softmax)", lambda x: torch.log_softmax(x, -1).exp_()),
        Variant("C++ 1t", lambda x: own.soft_rows(x, 1)),
        Variant("C++ rows 2t", lambda x: own.soft_rows(x, 2)),
    ]


def matmul(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The reference."""
    return torch.relu(x @ w + b)


def matmul_variants() -> list[Variant]:
    """Nine, three of them baselines."""

    def added(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.addmm(b, x, w).relu_()

    def turned(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.mm(w.t(), x.t()).t().add_(b).relu_().contiguous()

    def by_blocks(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        y = x.new_empty(x.shape[0], w.shape[1])
        for begin in range(0, x.shape[0], 64):
            part = y[begin : begin + 64]
            torch.addmm(b, x[begin : begin + 64], w, out=part)
            part.relu_()
        return y

    def summed(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        if x.shape[0] > 4:
            return added(x, w, b)
        return torch.stack([torch.mv(w.t(), row) for row in x]).add_(b).relu_()

    return [
        Variant("eager", matmul, baseline=True, reference=True),
        Variant("eager 1t", on_one_thread(matmul), baseline=True),
        Variant("compile dynamic", compiled(matmul), baseline=True),
        Variant("addmm", added),
        Variant("addmm 1t", on_one_thread(added)),
        Variant("transposed", turned),
        Variant("blocks of 64 rows", by_blocks),
        Variant("blocks of 64 rows 1t", on_one_thread(by_blocks)),
        Variant("row by row", summed),
    ]


CPU = (
    Operation(
        "rmsnorm", {"rows": (1, 16384), "cols": (8, 16384)}, [("rows", "cols"), ("cols",)], rmsnorm_variants
    ),
    Operation("softmax", {"rows": (1, 16384), "cols": (8, 16384)}, [("rows", "cols")], softmax_variants),
    Operation(
        "matmul_bias_relu",
        {"rows": (1, 1024), "inner": (8, 1024), "outer": (8, 1024)},
        [("rows", "inner"), ("inner", "outer"), ("outer",)],
        matmul_variants,
        1 << 20,
    ),
)
