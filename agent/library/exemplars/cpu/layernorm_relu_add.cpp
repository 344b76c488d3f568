// y = relu((x - mean) / sqrt(variance + eps) * weight + bias) + residual, over the last dimension.
//
// The rounding error of a mean is found in the second pass: deviations from the true mean add up to zero, and what they
// do add up to (`slip`) is taken out of variance and output. Constant rows so give exactly relu(bias) + residual.
//
// Rows go in blocks, phase by phase, so that the chains of dependent additions of several rows overlap and their divisions
// and square roots run as vectors. A block fits the L1 cache: memory is read once.
namespace {

struct Call {
  const float *x, *residual, *weight, *bias;
  float* y;
  int64_t rows, cols;
  float eps;
};

constexpr int BLOCK_ROWS = 16;
constexpr int64_t BLOCK_ELEMENTS = 2048;

// A row of LANES-wide vectors. VECTORS > 0: exactly that many, unrolled, for short rows, where setting up loops would cost
// more than the work. VECTORS == 0: any number. The last vector overlaps its neighbour when the width does not divide.
template <int LANES, int VECTORS> struct Row {
  using V = vec<LANES>;
  int64_t cols;
  V fresh;

  template <typename Body> inline void each(Body&& body) const {
    if constexpr (VECTORS > 0) {
#pragma GCC unroll 8
      for (int v = 0; v + 1 < VECTORS; ++v) body(int64_t{v} * LANES, v);
    } else {
      int64_t at = 0;
      for (; at + 4 * LANES < cols; at += 4 * LANES) {
        body(at, 0);
        body(at + LANES, 1);
        body(at + 2 * LANES, 2);
        body(at + 3 * LANES, 3);
      }
      for (; at + LANES < cols; at += LANES) body(at, 0);
    }
  }

  inline float sum(const float* x) const {
    V sums[4] = {};
    each([&](int64_t at, int v) { sums[v % 4] += load<LANES>(x + at); });
    sums[3] += load<LANES>(x + cols - LANES) * fresh;
    return sum_of<LANES>((sums[0] + sums[1]) + (sums[2] + sums[3]));
  }

  // Sums of x - mean and of its square.
  inline void deviations(const float* x, float mean, float& linear, float& square) const {
    V lines[2] = {}, squares[2] = {};
    each([&](int64_t at, int v) {
      const V d = load<LANES>(x + at) - mean;
      lines[v % 2] += d;
      squares[v % 2] += d * d;
    });
    const V d = (load<LANES>(x + cols - LANES) - mean) * fresh;
    linear = sum_of<LANES>(lines[0] + (lines[1] + d));
    square = sum_of<LANES>(squares[0] + (squares[1] + d * d));
  }
};

template <int LANES, int VECTORS, bool STREAM = false> void run(const Call& call, int64_t begin, int64_t end) {
  using V = vec<LANES>;
  const int64_t cols = call.cols;
  const Row<LANES, VECTORS> row{cols, cols % LANES ? fresh_lanes<LANES>(cols) : V{} + 1.f};
  const float count = static_cast<float>(cols);
  const int64_t block = VECTORS > 0 ? BLOCK_ROWS : std::clamp<int64_t>(BLOCK_ELEMENTS / cols, 1, BLOCK_ROWS);
  float mean[BLOCK_ROWS] = {}, slip[BLOCK_ROWS] = {}, scale[BLOCK_ROWS] = {};

  for (int64_t first = begin; first < end; first += block) {
    const int rows = static_cast<int>(std::min(block, end - first));
    for (int r = 0; r < rows; ++r) mean[r] = row.sum(call.x + (first + r) * cols);
    for (int r = 0; r < BLOCK_ROWS; ++r) mean[r] /= count;
    for (int r = 0; r < rows; ++r) row.deviations(call.x + (first + r) * cols, mean[r], slip[r], scale[r]);
    for (int r = 0; r < BLOCK_ROWS; ++r) {
      slip[r] /= count;
      const float variance = scale[r] / count - slip[r] * slip[r];
      scale[r] = 1.f / std::sqrt((variance < 0.f ? 0.f : variance) + call.eps);
    }
    for (int r = 0; r < rows; ++r) {
      const int64_t start = (first + r) * cols;
      const auto value = [&](int64_t at) {
        const V unit = (load<LANES>(call.x + start + at) - mean[r] - slip[r]) * scale[r];
        return relu<LANES>(unit * load<LANES>(call.weight + at) + load<LANES>(call.bias + at)) +
               load<LANES>(call.residual + start + at);
      };
      if constexpr (STREAM) {
        stream_row(call.y + start, cols, value);
      } else {
        row.each([&](int64_t at, int) { store<LANES>(call.y + start + at, value(at)); });
        store<LANES>(call.y + start + cols - LANES, value(cols - LANES));
      }
    }
  }
  if (STREAM) finish_streaming();
}

void rows(const Call& call, int64_t begin, int64_t end) {
  if (call.cols < 8) return run<1, 0>(call, begin, end);
  if (call.cols == 8) return run<8, 1>(call, begin, end);
  if (call.cols < 16) return run<8, 2>(call, begin, end);
  switch ((call.cols + 15) / 16) {
    case 1: return run<16, 1>(call, begin, end);
    case 2: return run<16, 2>(call, begin, end);
    case 3: return run<16, 3>(call, begin, end);
    case 4: return run<16, 4>(call, begin, end);
    case 5: return run<16, 5>(call, begin, end);
    case 6: return run<16, 6>(call, begin, end);
    case 7: return run<16, 7>(call, begin, end);
    case 8: return run<16, 8>(call, begin, end);
  }
  if (too_large_to_cache(call.rows * call.cols * sizeof(float))) return run<16, 0, true>(call, begin, end);
  run<16, 0>(call, begin, end);
}

}  // namespace

extern "C" void layernorm_relu_add(const char* arguments) {
  Call call;
  std::memcpy(&call, arguments, sizeof call);
  split_rows(call.rows, call.cols, 16 * 1024, [&](int64_t begin, int64_t end) { rows(call, begin, end); });
}
