# task: column_sum
# slip: race on accumulation
"""Threads share one accumulator without atomics."""

from __future__ import annotations

import ctypes

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline


SOURCE = """
#include <cstdint>
extern "C" void kernel(const float* x, float* y, int64_t rows, int64_t cols) {
  for (int64_t j = 0; j < cols; ++j) y[j] = 0.f;
#pragma omp parallel for num_threads(2) schedule(static, 1)
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < cols; ++j) {
      volatile float* place = y + j;
      *place = *place + x[i * cols + j];
    }
}
"""

library = load_inline(
    "cpp_column_sum_race",
    cpp_sources=SOURCE,
    is_python_module=False,
    no_implicit_headers=True,
    extra_cflags=["-O2", "-fopenmp"],
    extra_ldflags=["-fopenmp"],
)
kernel = ctypes.CDLL(library).kernel
kernel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64]
kernel.restype = None


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape[1])
        kernel(x.data_ptr(), y.data_ptr(), x.shape[0], x.shape[1])
        return y
