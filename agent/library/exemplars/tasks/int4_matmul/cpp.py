"""Few rows: each row of weights is unpacked into the nearest cache and multiplied at once, packed bytes are all that is read.
Many rows: the weights are unpacked in one pass, and the library multiplies.
"""

import ctypes

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.cpp_extension import load_inline

GROUP = 64
FUSED_ROWS = 16  # beyond, the library's product is faster than this one by more than its second pass costs

SOURCE = r"""
#include <algorithm>
#include <cstdint>
#include <omp.h>
#include <vector>

// A parallel region costs some 3 us; small inputs stay on one thread. torch's setting is the upper limit.
static int threads_for(int64_t work) {
  return static_cast<int>(std::clamp<int64_t>(work / 32768, 1, omp_get_max_threads()));
}

constexpr int64_t GROUP = 64;

static void unpack(const uint8_t* codes, const uint8_t* zero, const float* scale, float* weight, int64_t inner) {
  for (int64_t group = 0; group < inner / GROUP; ++group) {
    const float middle = zero[group], factor = scale[group];
    const uint8_t* packed = codes + group * GROUP / 2;
    float* to = weight + group * GROUP;
#pragma omp simd
    for (int64_t i = 0; i < GROUP / 2; ++i) {
      to[2 * i] = ((packed[i] & 15) - middle) * factor;
      to[2 * i + 1] = ((packed[i] >> 4) - middle) * factor;
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

// y = x @ weight.T, or, where x is null, y = weight itself.
extern "C" void int4_matmul(const float* x, const uint8_t* codes, const uint8_t* zero, const float* scale, float* y,
                            int64_t rows, int64_t inner, int64_t cols) {
#pragma omp parallel num_threads(threads_for(inner * cols))
  {
    std::vector<float> weight(x ? inner : 0);
#pragma omp for
    for (int64_t col = 0; col < cols; ++col) {
      const int64_t groups = inner / GROUP;
      float* to = x ? weight.data() : y + col * inner;
      unpack(codes + col * inner / 2, zero + col * groups, scale + col * groups, to, inner);
      if (!x) continue;
      int64_t row = 0;
      for (; row + 4 <= rows; row += 4) multiply<4>(x + row * inner, to, y + row * cols + col, inner, cols);
      const float* left = x + row * inner;
      if (rows - row == 1) multiply<1>(left, to, y + row * cols + col, inner, cols);
      if (rows - row == 2) multiply<2>(left, to, y + row * cols + col, inner, cols);
      if (rows - row == 3) multiply<3>(left, to, y + row * cols + col, inner, cols);
    }
  }
}
"""


def _built(name: str, source: str):
    """The C function `name` of a library that is compiled for this processor."""
    path = load_inline(
        f"{name}_cpu",
        cpp_sources=source,
        is_python_module=False,
        no_implicit_headers=True,
        extra_cflags=["-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fopenmp"],
        extra_ldflags=["-fopenmp"],
    )
    return getattr(ctypes.CDLL(path), name)


_int4_matmul = _built("int4_matmul", SOURCE)
_int4_matmul.argtypes = [ctypes.c_void_p] * 5 + [ctypes.c_int64] * 3
_int4_matmul.restype = None


class ModelNew(nn.Module):
    def __init__(self, inner: int, cols: int, dtype: str):
        super().__init__()
        kind, groups = getattr(torch, dtype), inner // GROUP
        self.register_buffer("codes", torch.zeros(cols, inner // 2, dtype=torch.uint8))
        self.register_buffer("zero", torch.zeros(cols, groups, dtype=torch.uint8))
        self.register_buffer("scale", torch.ones(cols, groups, dtype=kind))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide, scale = x.float().contiguous(), self.scale.float()
        rows, inner = x.shape
        cols = scale.shape[0]
        fused = rows <= FUSED_ROWS
        y = torch.empty(rows, cols) if fused else torch.empty(cols, inner)
        _int4_matmul(
            wide.data_ptr() if fused else None,
            self.codes.data_ptr(),
            self.zero.data_ptr(),
            scale.data_ptr(),
            y.data_ptr(),
            rows,
            inner,
            cols,
        )
        return (y if fused else F.linear(wide, y)).to(x.dtype)
