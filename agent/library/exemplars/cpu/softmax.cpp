// y = exp(x - max) / sum(exp(x - max)), over the last dimension. The exponentials are computed once and kept in the output
// row, which is still in the cache when they are divided; a streamed output keeps them in a buffer of its own.
namespace {

struct Call {
  const float* x;
  float* y;
  int64_t rows, cols;
};

constexpr int64_t MOST_BUFFERED = 16 * 1024;

template <typename AnyRow, bool STREAM>
void soften(const Call& call, const AnyRow& row, std::bool_constant<STREAM>, int64_t begin, int64_t end) {
  constexpr int LANES = AnyRow::LANES;
  using V = vec<LANES>;
  const int64_t block = STREAM ? 1 : block_rows(row);
  float top[BLOCK_ROWS] = {}, scale[BLOCK_ROWS] = {};
  alignas(64) float buffer[STREAM ? MOST_BUFFERED : 1];
  for (int64_t first = begin; first < end; first += block) {
    const int rows = static_cast<int>(std::min(block, end - first));
    for (int r = 0; r < rows; ++r) {
      const float* x = call.x + (first + r) * row.cols;
      V tops[4];
      for (V& one : tops) one = load<LANES>(x + row.last);
      row.each([&](int64_t at, int n) { tops[n % 4] = larger<LANES>(load<LANES>(x + at), tops[n % 4]); });
      top[r] = max_of<LANES>(larger<LANES>(larger<LANES>(tops[0], tops[1]), larger<LANES>(tops[2], tops[3])));
    }
    for (int r = 0; r < rows; ++r) {
      const int64_t start = (first + r) * row.cols;
      float* powers = STREAM ? buffer : call.y + start;
      scale[r] = row.sum([&](int64_t at) {
        const V power = exponential<LANES>(load<LANES>(call.x + start + at) - top[r]);
        store<LANES>(powers + at, power);
        return power;
      });
    }
    for (int r = 0; r < BLOCK_ROWS; ++r) scale[r] = 1.f / scale[r];
    for (int r = 0; r < rows; ++r) {
      float* out = call.y + (first + r) * row.cols;
      const float* powers = STREAM ? buffer : out;
      // The overlap of the last vector must not be divided twice: it is read before its neighbour is written.
      const V tail = load<LANES>(powers + row.last) * scale[r];
      row.template put<STREAM>(out, [&](int64_t at) { return at == row.last ? tail : load<LANES>(powers + at) * scale[r]; });
    }
  }
}

}  // namespace

extern "C" void softmax(const char* arguments) {
  Call call;
  std::memcpy(&call, arguments, sizeof call);
  const bool streaming = call.cols <= MOST_BUFFERED && too_large_to_cache(call.rows * call.cols);
  split_rows(call.rows, call.cols, 8 * 1024, [&](int64_t begin, int64_t end) {
    with_row(call.cols, streaming, [&](const auto& row, auto stream) { soften(call, row, stream, begin, end); });
  });
}
