"""A running sum with resets: one pass, in double precision, four rows side by side to hide the latency of an addition."""

import ctypes

import torch
import torch.nn as nn

from agent.kernels.tasks.building import library_of

SOURCE = r"""
#include <algorithm>
#include <cstdint>
#include <omp.h>

// A parallel region costs some 3 us; small inputs stay on one thread. torch's setting is the upper limit.
static int threads_for(int64_t work) {
  return static_cast<int>(std::clamp<int64_t>(work / 32768, 1, omp_get_max_threads()));
}

template <int ROWS>
static void scan(const float* x, const uint8_t* reset, float* y, int64_t length) {
  double sum[ROWS] = {};
  for (int64_t i = 0; i < length; ++i)
    for (int r = 0; r < ROWS; ++r) {
      const int64_t at = r * length + i;
      sum[r] = (reset[at] ? 0.0 : sum[r]) + x[at];
      y[at] = static_cast<float>(sum[r]);
    }
}

extern "C" void segmented_cumsum(const float* x, const uint8_t* reset, float* y, int64_t rows, int64_t length) {
  constexpr int64_t TOGETHER = 4;
#pragma omp parallel for num_threads(threads_for(rows * length))
  for (int64_t row = 0; row < rows; row += TOGETHER) {
    const int64_t at = row * length;
    if (row + TOGETHER <= rows) {
      scan<TOGETHER>(x + at, reset + at, y + at, length);
    } else {
      for (int64_t i = at; i < rows * length; i += length) scan<1>(x + i, reset + i, y + i, length);
    }
  }
}
"""


_segmented_cumsum = library_of("segmented_cumsum", SOURCE).segmented_cumsum
_segmented_cumsum.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int64] * 2
_segmented_cumsum.restype = None


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor, reset: torch.Tensor) -> torch.Tensor:
        x, reset = x.contiguous(), reset.contiguous()
        y = torch.empty_like(x)
        _segmented_cumsum(x.data_ptr(), reset.data_ptr(), y.data_ptr(), *x.shape)
        return y
