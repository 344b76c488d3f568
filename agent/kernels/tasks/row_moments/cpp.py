"""Four moments of each row: a pass for the mean and one for the powers of deviations, which finds the row in a cache."""

import ctypes

import torch
import torch.nn as nn

from agent.kernels.tasks.building import library_of

SOURCE = r"""
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <omp.h>

// A parallel region costs some 3 us; small inputs stay on one thread. torch's setting is the upper limit.
static int threads_for(int64_t work) {
  return static_cast<int>(std::clamp<int64_t>(work / 32768, 1, omp_get_max_threads()));
}

constexpr int64_t SPAN = 1024;  // partial sums of so many floats are added up in double precision

extern "C" void row_moments(const float* x, float* y, int64_t rows, int64_t cols, float eps) {
#pragma omp parallel for num_threads(threads_for(rows * cols))
  for (int64_t row = 0; row < rows; ++row) {
    const float* at = x + row * cols;
    double sum = 0;
    for (int64_t start = 0; start < cols; start += SPAN) {
      const int64_t end = std::min(start + SPAN, cols);
      float part = 0;
#pragma omp simd reduction(+ : part)
      for (int64_t i = start; i < end; ++i) part += at[i];
      sum += part;
    }
    const float mean = static_cast<float>(sum / cols);
    double first = 0, second = 0, third = 0, fourth = 0;
    for (int64_t start = 0; start < cols; start += SPAN) {
      const int64_t end = std::min(start + SPAN, cols);
      float a = 0, b = 0, c = 0, d = 0;
#pragma omp simd reduction(+ : a, b, c, d)
      for (int64_t i = start; i < end; ++i) {
        const float centered = at[i] - mean, square = centered * centered;
        a += centered;
        b += square;
        c += square * centered;
        d += square * square;
      }
      first += a, second += b, third += c, fourth += d;
    }
    // Moments about the rounded mean, moved to the true one, which is `slip` away.
    const double slip = first / cols, m2 = second / cols, m3 = third / cols, m4 = fourth / cols;
    const double variance = m2 - slip * slip + eps;
    y[4 * row] = static_cast<float>(mean + slip);
    y[4 * row + 1] = static_cast<float>(variance);
    y[4 * row + 2] = static_cast<float>((m3 - 3 * slip * m2) / (variance * std::sqrt(variance)));
    y[4 * row + 3] = static_cast<float>((m4 - 4 * slip * m3 + 6 * slip * slip * m2) / (variance * variance));
  }
}
"""


_row_moments = library_of("row_moments", SOURCE).row_moments
_row_moments.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_int64] * 2 + [ctypes.c_float]
_row_moments.restype = None


class ModelNew(nn.Module):
    def __init__(self, eps: float = 1e-5):
        super().__init__()
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        rows, cols = x.shape
        y = torch.empty(rows, 4)
        _row_moments(x.data_ptr(), y.data_ptr(), rows, cols, self.eps)
        return y
