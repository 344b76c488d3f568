// y = x / sqrt(mean(x * x) + eps) * weight, over the last dimension.
namespace {

struct Call {
  const float *x, *weight;
  float* y;
  int64_t rows, cols;
  float eps;
};

template <typename AnyRow, bool STREAM>
void normalize(const Call& call, const AnyRow& row, std::bool_constant<STREAM>, int64_t begin, int64_t end) {
  constexpr int LANES = AnyRow::LANES;
  const float count = static_cast<float>(row.cols);
  const int64_t block = block_rows(row);
  float scale[BLOCK_ROWS] = {};
  for (int64_t first = begin; first < end; first += block) {
    const int rows = static_cast<int>(std::min(block, end - first));
    for (int r = 0; r < rows; ++r) {
      const float* x = call.x + (first + r) * row.cols;
      scale[r] = row.sum([&](int64_t at) {
        const vec<LANES> value = load<LANES>(x + at);
        return value * value;
      });
    }
    for (int r = 0; r < BLOCK_ROWS; ++r) scale[r] = 1.f / std::sqrt(scale[r] / count + call.eps);
    for (int r = 0; r < rows; ++r) {
      const int64_t start = (first + r) * row.cols;
      row.template put<STREAM>(call.y + start, [&](int64_t at) {
        return load<LANES>(call.x + start + at) * scale[r] * load<LANES>(call.weight + at);
      });
    }
  }
}

}  // namespace

extern "C" void rmsnorm(const char* arguments) {
  Call call;
  std::memcpy(&call, arguments, sizeof call);
  split_rows(call.rows, call.cols, 24 * 1024, [&](int64_t begin, int64_t end) {
    with_row(call.cols, too_large_to_cache(call.rows * call.cols),
             [&](const auto& row, auto streaming) { normalize(call, row, streaming, begin, end); });
  });
}
