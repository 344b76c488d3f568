"""Blocks of 32 to MXFP8 in vector registers: maximum, power of two and rounding by operations on the bits of floats."""

import ctypes

import torch
import torch.nn as nn

from agent.kernels.tasks.building import library_of

BLOCK = 32

SOURCE = r"""
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <omp.h>

// A parallel region costs some 3 us; small inputs stay on one thread. torch's setting is the upper limit.
static int threads_for(int64_t work) {
  return static_cast<int>(std::clamp<int64_t>(work / 32768, 1, omp_get_max_threads()));
}

static inline int32_t bits_of(float value) {
  int32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}

static inline float float_of(int32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

static inline float widened(float value) { return value; }
static inline float widened(uint16_t value) { return float_of(static_cast<int32_t>(value) << 16); }  // bfloat16

template <typename Input>
static void quantize(const Input* x, uint8_t* codes, uint8_t* exponents, int64_t blocks) {
  constexpr int64_t SIZE = 32;
#pragma omp parallel for num_threads(threads_for(blocks * SIZE))
  for (int64_t block = 0; block < blocks; ++block) {
    float value[SIZE];
    int32_t largest = 0;  // the bits of floats without their sign are ordered as the floats are
#pragma omp simd reduction(max : largest)
    for (int64_t i = 0; i < SIZE; ++i) {
      value[i] = widened(x[block * SIZE + i]);
      largest = std::max(largest, bits_of(value[i]) & 0x7fffffff);
    }
    // Zeros and what is below the smallest normal number end at the lowest exponent, too.
    const int32_t exponent = std::max((largest >> 23) - 127 - 8, -127);
    const float factor = float_of((127 - exponent) << 23);  // 2 ** -exponent, which is at most 2 ** 127
#pragma omp simd
    for (int64_t i = 0; i < SIZE; ++i) {
      const float scaled = std::min(std::max(value[i] * factor, -448.f), 448.f);
      const int32_t bits = bits_of(scaled), positive = bits & 0x7fffffff;
      // From 2^-6 on: cut the mantissa to three bits, ties to even, and move the exponent's bias from 127 to 7.
      const int32_t normal = ((positive + 0x7ffff + ((positive >> 20) & 1)) >> 20) - (120 << 3);
      // Below, steps are of 2^-9, which is how far apart floats are at 2^14.
      const int32_t small = bits_of(float_of(positive) + 16384.f) - 0x46800000;
      codes[block * SIZE + i] = static_cast<uint8_t>(((bits >> 24) & 0x80) | (positive < 0x3c800000 ? small : normal));
    }
    exponents[block] = static_cast<uint8_t>(exponent + 127);
  }
}

extern "C" void mx_quantize(const void* x, uint8_t* codes, uint8_t* exponents, int64_t blocks, int64_t item) {
  if (item == 4) return quantize(static_cast<const float*>(x), codes, exponents, blocks);
  quantize(static_cast<const uint16_t*>(x), codes, exponents, blocks);
}
"""


_mx_quantize = library_of("mx_quantize", SOURCE).mx_quantize
_mx_quantize.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int64] * 2
_mx_quantize.restype = None


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if x.dtype not in (torch.float32, torch.bfloat16):
            raise TypeError(f"float32 or bfloat16, not {x.dtype}")
        x = x.contiguous()
        rows, cols = x.shape
        codes = torch.empty(rows, cols, dtype=torch.float8_e4m3fn)
        exponents = torch.empty(rows, cols // BLOCK, dtype=torch.uint8)
        _mx_quantize(
            x.data_ptr(), codes.data_ptr(), exponents.data_ptr(), exponents.numel(), x.element_size()
        )
        return codes, exponents
