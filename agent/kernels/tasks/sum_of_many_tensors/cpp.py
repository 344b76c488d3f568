"""All sums by one call over a table of addresses and sizes."""

import array
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

constexpr int64_t SPAN = 1024;  // partial sums of so many floats are added up in double precision

extern "C" void sum_of_many_tensors(const float* const* tensors, const int64_t* sizes, float* y, int64_t count) {
  int64_t all = 0;
  for (int64_t n = 0; n < count; ++n) all += sizes[n];
#pragma omp parallel for schedule(dynamic, 8) num_threads(threads_for(all))
  for (int64_t n = 0; n < count; ++n) {
    const float* x = tensors[n];
    double total = 0;
    for (int64_t start = 0; start < sizes[n]; start += SPAN) {
      const int64_t end = std::min(start + SPAN, sizes[n]);
      float part = 0;
#pragma omp simd reduction(+ : part)
      for (int64_t i = start; i < end; ++i) part += x[i];
      total += part;
    }
    y[n] = static_cast<float>(total);
  }
}
"""


_sum_of_many_tensors = library_of("sum_of_many_tensors", SOURCE).sum_of_many_tensors
_sum_of_many_tensors.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int64]
_sum_of_many_tensors.restype = None


class ModelNew(nn.Module):
    def forward(self, tensors: list[torch.Tensor]) -> torch.Tensor:
        tensors = [tensor.contiguous() for tensor in tensors]
        table = array.array("q", [tensor.data_ptr() for tensor in tensors])
        table.extend([tensor.numel() for tensor in tensors])
        address, count = table.buffer_info()[0], len(tensors)
        y = torch.empty(count)
        _sum_of_many_tensors(address, address + 8 * count, y.data_ptr(), count)
        return y
