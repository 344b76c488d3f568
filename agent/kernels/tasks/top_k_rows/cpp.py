"""The k largest by a sorted list: vectors of elements are compared with its last entry, and few of them have something to add.

Floats become integers that are ordered as torch's sort orders floats: both zeros equal, what is no number first. An
element enters only if it is larger than the last entry, so that of equal ones the first stays.
"""

import ctypes

import torch
import torch.nn as nn

from agent.kernels.tasks.building import library_of

SOURCE = r"""
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <omp.h>
#include <vector>

// A parallel region costs some 3 us; small inputs stay on one thread. torch's setting is the upper limit.
static int threads_for(int64_t work) {
  return static_cast<int>(std::clamp<int64_t>(work / 32768, 1, omp_get_max_threads()));
}

static inline int32_t order_of(float value) {
  const float zero_is_zero = value == 0.f ? 0.f : value;
  int32_t bits;
  std::memcpy(&bits, &zero_is_zero, 4);
  return value != value ? 0x7fffffff : bits ^ ((bits >> 31) & 0x7fffffff);
}

extern "C" void top_k_rows(const float* x, float* values, int64_t* index, int64_t rows, int64_t cols, int64_t k) {
  constexpr int64_t SPAN = 64;
#pragma omp parallel num_threads(threads_for(rows * cols))
  {
    std::vector<int64_t> orders(k);
#pragma omp for
    for (int64_t row = 0; row < rows; ++row) {
      const float* at = x + row * cols;
      int64_t* places = index + row * k;
      std::fill(orders.begin(), orders.end(), std::numeric_limits<int64_t>::min());
      for (int64_t start = 0; start < cols; start += SPAN) {
        const int64_t end = std::min(start + SPAN, cols);
        int32_t largest = std::numeric_limits<int32_t>::min();
#pragma omp simd reduction(max : largest)
        for (int64_t i = start; i < end; ++i) largest = std::max(largest, order_of(at[i]));
        if (largest <= orders[k - 1]) continue;
        for (int64_t i = start; i < end; ++i) {
          const int64_t order = order_of(at[i]);
          if (order <= orders[k - 1]) continue;
          int64_t rank = k - 1;
          for (; rank > 0 && orders[rank - 1] < order; --rank) {
            orders[rank] = orders[rank - 1];
            places[rank] = places[rank - 1];
          }
          orders[rank] = order;
          places[rank] = i;
        }
      }
      for (int64_t rank = 0; rank < k; ++rank) values[row * k + rank] = at[places[rank]];
    }
  }
}
"""


_top_k_rows = library_of("top_k_rows", SOURCE).top_k_rows
_top_k_rows.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int64] * 3
_top_k_rows.restype = None


class ModelNew(nn.Module):
    def __init__(self, k: int):
        super().__init__()
        self.k = k

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = x.contiguous()
        rows, cols = x.shape
        k = min(self.k, cols)
        values, index = torch.empty(rows, k), torch.empty(rows, k, dtype=torch.int64)
        _top_k_rows(x.data_ptr(), values.data_ptr(), index.data_ptr(), rows, cols, k)
        return values, index
