// y = relu((x - mean) / sqrt(variance + eps) * weight + bias) + residual, over the last dimension.
//
// The rounding error of a mean is found in the second pass: deviations from the true mean add up to zero, and what they
// do add up to (`slip`) is taken out of variance and output. Constant rows so give exactly relu(bias) + residual.
namespace {

struct Call {
  const float *x, *residual, *weight, *bias;
  float* y;
  int64_t rows, cols;
  float eps;
};

template <typename AnyRow, bool STREAM>
void normalize(const Call& call, const AnyRow& row, std::bool_constant<STREAM>, int64_t begin, int64_t end) {
  constexpr int LANES = AnyRow::LANES;
  using V = vec<LANES>;
  const float count = static_cast<float>(row.cols);
  const int64_t block = block_rows(row);
  float mean[BLOCK_ROWS] = {}, slip[BLOCK_ROWS] = {}, squares[BLOCK_ROWS] = {}, scale[BLOCK_ROWS] = {};
  for (int64_t first = begin; first < end; first += block) {
    const int rows = static_cast<int>(std::min(block, end - first));
    for (int r = 0; r < rows; ++r) {
      const float* x = call.x + (first + r) * row.cols;
      mean[r] = row.sum([&](int64_t at) { return load<LANES>(x + at); });
    }
    for (int r = 0; r < BLOCK_ROWS; ++r) mean[r] /= count;
    for (int r = 0; r < rows; ++r) {
      const float* x = call.x + (first + r) * row.cols;
      const auto [linear, square] = row.template sums<2>([&](int64_t at) {
        const V deviation = load<LANES>(x + at) - mean[r];
        return std::array<V, 2>{deviation, deviation * deviation};
      });
      slip[r] = linear;
      squares[r] = square;
    }
    for (int r = 0; r < BLOCK_ROWS; ++r) {
      slip[r] /= count;
      const float variance = squares[r] / count - slip[r] * slip[r];
      scale[r] = 1.f / std::sqrt((variance < 0.f ? 0.f : variance) + call.eps);
    }
    for (int r = 0; r < rows; ++r) {
      const int64_t start = (first + r) * row.cols;
      row.template put<STREAM>(call.y + start, [&](int64_t at) {
        const V unit = (load<LANES>(call.x + start + at) - mean[r] - slip[r]) * scale[r];
        return relu<LANES>(unit * load<LANES>(call.weight + at) + load<LANES>(call.bias + at)) +
               load<LANES>(call.residual + start + at);
      });
    }
  }
}

}  // namespace

extern "C" void layernorm_relu_add(const char* arguments) {
  Call call;
  std::memcpy(&call, arguments, sizeof call);
  split_rows(call.rows, call.cols, 16 * 1024, [&](int64_t begin, int64_t end) {
    with_row(call.cols, too_large_to_cache(call.rows * call.cols),
             [&](const auto& row, auto streaming) { normalize(call, row, streaming, begin, end); });
  });
}
