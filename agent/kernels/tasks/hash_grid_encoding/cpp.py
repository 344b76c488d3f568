"""Points level by level, so that a level's table is in the cache while it is read; nothing but the result is written.

Of a hash only the low bits count, since tables have a power of two of entries: products and exclusive ors of 32 bits
give the same places as those of 64.
"""

import ctypes

import torch
import torch.nn as nn

from agent.kernels.tasks.building import library_of

FEATURES, BASE, GROWTH = 2, 8, 1.38
PRIMES = (1, 2654435761, 805459861)

SOURCE = r"""
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <omp.h>

// A parallel region costs some 3 us; small inputs stay on one thread. torch's setting is the upper limit.
static int threads_for(int64_t work) {
  return static_cast<int>(std::clamp<int64_t>(work / 32768, 1, omp_get_max_threads()));
}

extern "C" void hash_grid_encoding(const float* x, const float* table, const int64_t* resolution, float* y, int64_t points,
                                   int64_t levels, int64_t size) {
  const uint32_t mask = static_cast<uint32_t>(size - 1);
  constexpr int64_t BLOCK = 4096;
#pragma omp parallel for num_threads(threads_for(points * levels * 64))
  for (int64_t start = 0; start < points; start += BLOCK)
    for (int64_t level = 0; level < levels; ++level) {
      const float scale = static_cast<float>(resolution[level]);
      const float* entries = table + level * size * 2;
      for (int64_t point = start; point < std::min(start + BLOCK, points); ++point) {
        float part[3];
        uint32_t hash[3][2];
        constexpr uint32_t PRIMES[3] = {1u, 2654435761u, 805459861u};
        for (int d = 0; d < 3; ++d) {
          const float scaled = x[3 * point + d] * scale, cell = std::floor(scaled);
          part[d] = scaled - cell;
          hash[d][0] = static_cast<uint32_t>(static_cast<int64_t>(cell)) * PRIMES[d];
          hash[d][1] = hash[d][0] + PRIMES[d];
        }
        float first = 0, second = 0;
        for (int corner = 0; corner < 8; ++corner) {
          const int i = corner >> 2, j = corner >> 1 & 1, k = corner & 1;
          const float weight = (i ? part[0] : 1 - part[0]) * (j ? part[1] : 1 - part[1]) * (k ? part[2] : 1 - part[2]);
          const float* entry = entries + 2 * static_cast<int64_t>((hash[0][i] ^ hash[1][j] ^ hash[2][k]) & mask);
          first += weight * entry[0];
          second += weight * entry[1];
        }
        y[(point * levels + level) * 2] = first;
        y[(point * levels + level) * 2 + 1] = second;
      }
    }
}
"""


_hash_grid_encoding = library_of("hash_grid_encoding", SOURCE).hash_grid_encoding
_hash_grid_encoding.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_int64] * 3
_hash_grid_encoding.restype = None


class ModelNew(nn.Module):
    def __init__(self, levels: int, log_table: int):
        super().__init__()
        self.table = nn.Parameter(torch.randn(levels, 2**log_table, FEATURES))
        self.register_buffer(
            "resolution", torch.tensor([int(BASE * GROWTH**level) for level in range(levels)])
        )
        corners = torch.tensor([[i >> 2 & 1, i >> 1 & 1, i & 1] for i in range(8)])
        self.register_buffer("corners", corners)
        self.register_buffer("primes", torch.tensor(PRIMES))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, table = x.contiguous(), self.table
        points, (levels, size, features) = x.shape[0], table.shape
        y = torch.empty(points, levels * features)
        _hash_grid_encoding(
            x.data_ptr(), table.data_ptr(), self.resolution.data_ptr(), y.data_ptr(), points, levels, size
        )
        return y
