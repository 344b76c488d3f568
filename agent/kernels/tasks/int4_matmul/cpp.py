"""Few rows: each row of weights is unpacked into the nearest cache and multiplied at once, packed bytes are all that is read.
Many rows: the weights are unpacked in one pass, and the library multiplies.
"""

import ctypes

import torch
import torch.nn as nn
import torch.nn.functional as F

from agent.kernels.tasks.building import library_of

GROUP = 64
FUSED_ROWS = 16  # beyond, the library's product is faster than this one by more than its second pass costs

SOURCE = r"""
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <omp.h>
#include <vector>

// A parallel region costs some 3 us; small inputs stay on one thread. torch's setting is the upper limit.
static int threads_for(int64_t work) {
  return static_cast<int>(std::clamp<int64_t>(work / 32768, 1, omp_get_max_threads()));
}

constexpr int64_t GROUP = 64;

static inline void put(float* to, float value) { *to = value; }

static inline void put(uint16_t* to, float value) {  // bfloat16, ties to even; weights are finite
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  *to = static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

template <typename Weight>
static void unpack(const uint8_t* codes, const uint8_t* zero, const float* scale, Weight* weight, int64_t inner) {
  for (int64_t group = 0; group < inner / GROUP; ++group) {
    const float middle = zero[group], factor = scale[group];
    const uint8_t* packed = codes + group * GROUP / 2;
    Weight* to = weight + group * GROUP;
#pragma omp simd
    for (int64_t i = 0; i < GROUP / 2; ++i) {
      put(to + 2 * i, ((packed[i] & 15) - middle) * factor);
      put(to + 2 * i + 1, ((packed[i] >> 4) - middle) * factor);
    }
  }
}

template <int ROWS>
static void multiply(const float* x, const float* weight, float* y, int64_t inner, int64_t cols) {
  float a = 0, b = 0, c = 0, d = 0;
#pragma omp simd reduction(+ : a, b, c, d)
  for (int64_t i = 0; i < inner; ++i) {
    a += x[i] * weight[i];
    if (ROWS > 1) b += x[inner + i] * weight[i];
    if (ROWS > 2) c += x[2 * inner + i] * weight[i];
    if (ROWS > 3) d += x[3 * inner + i] * weight[i];
  }
  const float sums[4] = {a, b, c, d};
  for (int row = 0; row < ROWS; ++row) y[row * cols] = sums[row];
}

// The rows of one column's codes, zero points and scales.
struct Column {
  const uint8_t *codes, *zero;
  const float* scale;
};

static Column column(const uint8_t* codes, const uint8_t* zero, const float* scale, int64_t inner, int64_t col) {
  const int64_t groups = inner / GROUP;
  return {codes + col * inner / 2, zero + col * groups, scale + col * groups};
}

extern "C" void int4_matmul(const float* x, const uint8_t* codes, const uint8_t* zero, const float* scale, float* y,
                            int64_t rows, int64_t inner, int64_t cols) {
#pragma omp parallel num_threads(threads_for(inner * cols))
  {
    std::vector<float> weight(inner);
#pragma omp for
    for (int64_t col = 0; col < cols; ++col) {
      const Column from = column(codes, zero, scale, inner, col);
      unpack(from.codes, from.zero, from.scale, weight.data(), inner);
      int64_t row = 0;
      for (; row + 4 <= rows; row += 4) multiply<4>(x + row * inner, weight.data(), y + row * cols + col, inner, cols);
      const float* left = x + row * inner;
      if (rows - row == 1) multiply<1>(left, weight.data(), y + row * cols + col, inner, cols);
      if (rows - row == 2) multiply<2>(left, weight.data(), y + row * cols + col, inner, cols);
      if (rows - row == 3) multiply<3>(left, weight.data(), y + row * cols + col, inner, cols);
    }
  }
}

extern "C" void int4_unpack(void* weight, const uint8_t* codes, const uint8_t* zero, const float* scale, int64_t inner,
                            int64_t cols, int64_t item) {
#pragma omp parallel for num_threads(threads_for(inner * cols))
  for (int64_t col = 0; col < cols; ++col) {
    const Column from = column(codes, zero, scale, inner, col);
    if (item == 4)
      unpack(from.codes, from.zero, from.scale, static_cast<float*>(weight) + col * inner, inner);
    else
      unpack(from.codes, from.zero, from.scale, static_cast<uint16_t*>(weight) + col * inner, inner);
  }
}
"""


_library = library_of("int4_matmul", SOURCE)
_library.int4_matmul.argtypes = [ctypes.c_void_p] * 5 + [ctypes.c_int64] * 3
_library.int4_unpack.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_int64] * 3
_library.int4_matmul.restype = _library.int4_unpack.restype = None


class ModelNew(nn.Module):
    def __init__(self, inner: int, cols: int, dtype: str):
        super().__init__()
        kind, groups = getattr(torch, dtype), inner // GROUP
        self.register_buffer("codes", torch.zeros(cols, inner // 2, dtype=torch.uint8))
        self.register_buffer("zero", torch.zeros(cols, groups, dtype=torch.uint8))
        self.register_buffer("scale", torch.ones(cols, groups, dtype=kind))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.dtype not in (torch.float32, torch.bfloat16):
            raise TypeError(f"float32 or bfloat16, not {x.dtype}")
        scale = self.scale.float()
        rows, inner = x.shape
        cols = scale.shape[0]
        packed = (self.codes.data_ptr(), self.zero.data_ptr(), scale.data_ptr())
        if rows > FUSED_ROWS:
            weight = torch.empty(cols, inner, dtype=x.dtype)
            _library.int4_unpack(weight.data_ptr(), *packed, inner, cols, x.element_size())
            return F.linear(x, weight)
        wide, y = x.float().contiguous(), torch.empty(rows, cols)
        _library.int4_matmul(wide.data_ptr(), *packed, y.data_ptr(), rows, inner, cols)
        return y.to(x.dtype)
