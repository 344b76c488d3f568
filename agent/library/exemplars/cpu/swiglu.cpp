// y = gate / (1 + exp(-gate)) * up, element by element.
namespace {

struct Call {
  const float *gate, *up;
  float* y;
  int64_t elements;
};

constexpr int64_t PIECE = 2048;  // elements; pieces are dealt to threads like rows

template <typename AnyRow, bool STREAM>
void activate(const Call& call, const AnyRow& row, std::bool_constant<STREAM>, int64_t start) {
  constexpr int LANES = AnyRow::LANES;
  row.template put<STREAM>(call.y + start, [&](int64_t at) {
    const vec<LANES> gate = load<LANES>(call.gate + start + at);
    return gate / (1.f + exponential<LANES>(-gate)) * load<LANES>(call.up + start + at);
  });
}

}  // namespace

extern "C" void swiglu(const char* arguments) {
  Call call;
  std::memcpy(&call, arguments, sizeof call);
  const bool streaming = too_large_to_cache(call.elements);
  split_rows((call.elements + PIECE - 1) / PIECE, PIECE, 12 * 1024, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * PIECE, count = std::min(end * PIECE, call.elements) - first;
    if (count > 0)
      with_row(count, streaming, [&](const auto& row, auto stream) { activate(call, row, stream, first); });
  });
}
