"""The whole step by one call over a table of addresses: a pass for the norm, and one that reads and writes the rest once."""

import array
import ctypes

import torch
import torch.nn as nn

from agent.kernels.tasks.building import library_of

RATE, DECAY, BETA1, BETA2, AVERAGE, EPS, STEP = 0.05, 0.1, 0.9, 0.95, 0.99, 1e-8, 20

Tensors = list[torch.Tensor]

SOURCE = r"""
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <omp.h>
#include <vector>

// A parallel region costs some 3 us; small inputs stay on one thread. torch's setting is the upper limit.
static int threads_for(int64_t work) {
  return static_cast<int>(std::clamp<int64_t>(work / 32768, 1, omp_get_max_threads()));
}

// Numbers of the step, as Python lays them out.
struct Step {
  float kept, rate, beta1, beta2, second_scale, average, eps, share;
};

struct Piece {
  int64_t tensor, begin, end;
};

static void update(float* const* table, int64_t count, const Piece& piece, const Step& step, float factor) {
  float* const* at = table + piece.tensor;
  const float *weight = at[0], *gradient = at[count], *first = at[2 * count], *second = at[3 * count],
              *average = at[4 * count];
  float *new_weight = at[5 * count], *new_first = at[6 * count], *new_second = at[7 * count],
        *new_average = at[8 * count];
#pragma omp simd
  for (int64_t i = piece.begin; i < piece.end; ++i) {
    const float g = gradient[i] * factor;
    const float m = first[i] + (1.f - step.beta1) * (g - first[i]);
    const float v = second[i] * step.beta2 + (1.f - step.beta2) * g * g;
    const float w = weight[i] * step.kept - step.rate * m / (std::sqrt(v * step.second_scale) + step.eps);
    new_weight[i] = w;
    new_first[i] = m;
    new_second[i] = v;
    new_average[i] = average[i] + (1.f - step.average) * (w - average[i]);
  }
}

extern "C" void adamw_clip_average(float* const* table, const int64_t* sizes, const Step* step, int64_t count) {
  constexpr int64_t SPAN = 16384;
  std::vector<Piece> pieces;
  int64_t all = 0;
  for (int64_t n = 0; n < count; ++n) {
    all += sizes[n];
    for (int64_t begin = 0; begin < sizes[n]; begin += SPAN) pieces.push_back({n, begin, std::min(begin + SPAN, sizes[n])});
  }
  const int64_t parts = static_cast<int64_t>(pieces.size());
  double squares = 0;
#pragma omp parallel for reduction(+ : squares) num_threads(threads_for(all))
  for (int64_t part = 0; part < parts; ++part) {
    const float* gradient = table[count + pieces[part].tensor];
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = pieces[part].begin; i < pieces[part].end; ++i) sum += gradient[i] * gradient[i];
    squares += sum;
  }
  const float factor = static_cast<float>(std::min(step->share * std::sqrt(static_cast<double>(all)) / std::sqrt(squares), 1.0));
#pragma omp parallel for num_threads(threads_for(4 * all))
  for (int64_t part = 0; part < parts; ++part) update(table, count, pieces[part], *step, factor);
}
"""


_adamw_clip_average = library_of("adamw_clip_average", SOURCE).adamw_clip_average
_adamw_clip_average.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int64]
_adamw_clip_average.restype = None

_STEP = array.array(
    "f",
    [
        1 - RATE * DECAY, RATE / (1 - BETA1**STEP), BETA1, BETA2, 1 / (1 - BETA2**STEP), AVERAGE, EPS,
        0.8,  # of the norm that gradients of size 1 would have: more is clipped
    ],
)  # fmt: skip


class ModelNew(nn.Module):
    def forward(
        self, weights: Tensors, gradients: Tensors, first: Tensors, second: Tensors, averages: Tensors
    ) -> tuple[Tensors, Tensors, Tensors, Tensors]:
        lists = [
            [tensor.contiguous() for tensor in tensors]
            for tensors in (weights, gradients, first, second, averages)
        ]
        weights, count = lists[0], len(weights)
        results = [[torch.empty_like(tensor) for tensor in weights] for _ in range(4)]
        table = array.array("q", [tensor.data_ptr() for tensors in (*lists, *results) for tensor in tensors])
        table.extend([tensor.numel() for tensor in weights])
        address = table.buffer_info()[0]
        _adamw_clip_average(address, address + 8 * 9 * count, _STEP.buffer_info()[0], count)
        return tuple(map(tuple, results))
