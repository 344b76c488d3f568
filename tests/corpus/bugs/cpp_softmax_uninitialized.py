# task: softmax
# slip: uninitialised accumulator
"""The sum of each row starts from whatever the output memory holds."""

from __future__ import annotations

import ctypes

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline


SOURCE = """
#include <cmath>
#include <cstdint>
extern "C" void kernel(const float* x, float* y, float* sums, int64_t rows, int64_t cols) {
#pragma omp parallel for
  for (int64_t i = 0; i < rows; ++i) {
    float top = x[i * cols];
    for (int64_t j = 1; j < cols; ++j) top = std::fmax(top, x[i * cols + j]);
    for (int64_t j = 0; j < cols; ++j) sums[i] += y[i * cols + j] = std::exp(x[i * cols + j] - top);
    for (int64_t j = 0; j < cols; ++j) y[i * cols + j] /= sums[i];
  }
}
"""

library = load_inline(
    "cpp_softmax_uninitialized",
    cpp_sources=SOURCE,
    is_python_module=False,
    no_implicit_headers=True,
    extra_cflags=["-O2", "-fopenmp"],
    extra_ldflags=["-fopenmp"],
)
kernel = ctypes.CDLL(library).kernel
kernel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64]
kernel.restype = None


class ModelNew(nn.Module):
    def forward(self, x):
        y, sums = torch.empty_like(x), torch.empty(x.shape[0])
        kernel(x.data_ptr(), y.data_ptr(), sums.data_ptr(), x.shape[0], x.shape[1])
        return y
