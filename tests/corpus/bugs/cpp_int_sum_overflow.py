# task: int_row_sum
# slip: int32 overflow
"""int instead of int64_t for the running sum."""

from __future__ import annotations

import ctypes

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline


SOURCE = """
#include <cstdint>
extern "C" void kernel(const int* x, int64_t* y, int64_t rows, int64_t cols) {
  for (int64_t i = 0; i < rows; ++i) {
    unsigned sum = 0;
    for (int64_t j = 0; j < cols; ++j) sum += static_cast<unsigned>(x[i * cols + j]);
    y[i] = static_cast<int>(sum);
  }
}
"""

library = load_inline(
    "cpp_int_sum_overflow",
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
        y = torch.empty(x.shape[0], dtype=torch.int64)
        kernel(x.data_ptr(), y.data_ptr(), x.shape[0], x.shape[1])
        return y
