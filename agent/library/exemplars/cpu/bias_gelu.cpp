// y = gelu(x + bias) in the approximation with tanh. As (1 + tanh(u)) / 2 is 1 / (1 + exp(-2 u)), one exponential does, and
// the left tail keeps its digits, where 1 + tanh(u) would cancel.
namespace {

struct Call {
  const float *x, *bias;
  float* y;
  int64_t rows, cols;
};

template <typename AnyRow, bool STREAM>
void activate(const Call& call, const AnyRow& row, std::bool_constant<STREAM>, int64_t begin, int64_t end) {
  constexpr int LANES = AnyRow::LANES;
  constexpr float SLOPE = -1.59576912f, CUBE = 0.044715f;  // -2 * sqrt(2 / pi)
  for (int64_t start = begin * row.cols; start < end * row.cols; start += row.cols) {
    row.template put<STREAM>(call.y + start, [&](int64_t at) {
      const vec<LANES> v = load<LANES>(call.x + start + at) + load<LANES>(call.bias + at);
      return v / (1.f + exponential<LANES>(SLOPE * (v + CUBE * (v * v * v))));
    });
  }
}

}  // namespace

extern "C" void bias_gelu(const char* arguments) {
  Call call;
  std::memcpy(&call, arguments, sizeof call);
  split_rows(call.rows, call.cols, 12 * 1024, [&](int64_t begin, int64_t end) {
    with_row(call.cols, too_large_to_cache(call.rows * call.cols),
             [&](const auto& row, auto streaming) { activate(call, row, streaming, begin, end); });
  });
}
