# task: rmsnorm
# slip: tail mask missing
"""Eight columns at a time; what does not fill a vector is never written."""

from __future__ import annotations

import ctypes

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline


SOURCE = """
#include <cmath>
#include <cstdint>
extern "C" void kernel(const float* x, const float* w, float* y, int64_t rows, int64_t cols, float eps) {
#pragma omp parallel for
  for (int64_t i = 0; i < rows; ++i) {
    float sum = 0.f;
    for (int64_t j = 0; j < cols; ++j) sum += x[i * cols + j] * x[i * cols + j];
    const float scale = 1.f / std::sqrt(sum / cols + eps);
    for (int64_t j = 0; j + 8 <= cols; j += 8)
      for (int64_t k = j; k < j + 8; ++k) y[i * cols + k] = x[i * cols + k] * scale * w[k];
  }
}
"""

library = load_inline(
    "cpp_rmsnorm_vector_tail",
    cpp_sources=SOURCE,
    is_python_module=False,
    no_implicit_headers=True,
    extra_cflags=["-O2", "-fopenmp"],
    extra_ldflags=["-fopenmp"],
)
kernel = ctypes.CDLL(library).kernel
kernel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_float]
kernel.restype = None


class ModelNew(nn.Module):
    def __init__(self, cols, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(cols))
        self.eps = eps

    def forward(self, x):
        y = torch.empty_like(x)
        kernel(x.data_ptr(), self.weight.data_ptr(), y.data_ptr(), x.shape[0], x.shape[1], self.eps)
        return y
