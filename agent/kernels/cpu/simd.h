// Vectors of floats through the compiler's own vector types: one source for AVX-512, AVX2, SSE and NEON. The compiler
// splits a vector where the machine's registers are narrower.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <omp.h>
#include <type_traits>
#include <unistd.h>
#include <utility>
#include <vector>
#if defined(__AVX__)
#include <immintrin.h>
#endif

namespace {

template <int LANES> struct Vector {
  typedef float type __attribute__((vector_size(LANES * sizeof(float))));
  typedef int32_t bits __attribute__((vector_size(LANES * sizeof(int32_t))));
  typedef uint32_t words __attribute__((vector_size(LANES * sizeof(uint32_t))));
};
template <int LANES> using vec = typename Vector<LANES>::type;
template <int LANES> using ivec = typename Vector<LANES>::bits;
template <int LANES> using uvec = typename Vector<LANES>::words;

template <int LANES> inline vec<LANES> load(const float* from) {
  vec<LANES> value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

// Elements of a block of rows (see BLOCK_ROWS): 8 KB, so that several inputs of one stay in the L1 cache.
constexpr int64_t BLOCK_ELEMENTS = 2048;

// Loads, and fetches what the next block has there. A processor's own prefetching ends with a page, which a row often fills; with
// inputs that are not in the L2 cache, this took a gated SiLU from 227 to 158 us and a cross-entropy from 139 to 108 us (Xeon).
template <int LANES> inline vec<LANES> load_ahead(const float* from) {
  __builtin_prefetch(from + BLOCK_ELEMENTS);
  return load<LANES>(from);
}

// Truth values as 0 and 1: a byte of a bool tensor may have any value, as after `view(torch.bool)`.
template <int LANES> inline vec<LANES> load_mask(const uint8_t* from) {
  typedef uint8_t bytes __attribute__((vector_size(LANES)));
  bytes value;
  std::memcpy(&value, from, sizeof value);
  return __builtin_convertvector((value != 0) & 1, vec<LANES>);
}

template <int LANES> inline void store(float* to, vec<LANES> value) { std::memcpy(to, &value, sizeof value); }

// A store past the caches, which spares reading the line before it is overwritten. `to` is aligned to 64 bytes.
inline void stream(float* to, vec<16> value) {
#if defined(__AVX512F__)
  _mm512_stream_ps(to, (__m512)value);
#elif defined(__AVX__)
  __m256 halves[2];
  std::memcpy(halves, &value, sizeof value);
  _mm256_stream_ps(to, halves[0]);
  _mm256_stream_ps(to + 8, halves[1]);
#else
  store<16>(to, value);
#endif
}

// `count` lanes of a vector, from lane `first` on.
inline void store_lanes(float* to, vec<16> value, int64_t first, int64_t count) {
  if (count) std::memcpy(to, reinterpret_cast<const float*>(&value) + first, count * sizeof(float));
}

inline void finish_streaming() {
#if defined(__AVX__)
  _mm_sfence();
#endif
}

// Combines the lanes of a vector pair by pair: `fold<16>(v, plus)` is their sum.
template <int LANES, typename Join> inline float fold(vec<LANES> value, Join join) {
  if constexpr (LANES == 1) {
    return value[0];
  } else {
    vec<LANES / 2> halves[2];
    std::memcpy(halves, &value, sizeof value);
    return fold<LANES / 2>(join(halves[0], halves[1]), join);
  }
}

template <int LANES> inline float sum_of(vec<LANES> value) {
  return fold<LANES>(value, [](auto a, auto b) { return a + b; });
}

// Of floats or vectors. NaN stays NaN.
template <typename T> inline T larger_or_nan(T a, T b) { return ((a > b) | (a != a)) ? a : b; }
template <typename T> inline T smaller_or_nan(T a, T b) { return ((a < b) | (a != a)) ? a : b; }
template <typename T> inline T relu(T value) { return value < 0.f ? T{} : value; }
template <typename T> inline T magnitude(T value) { return value < 0.f ? -value : value + 0.f; }  // of -0, too

template <int LANES> inline vec<LANES> square_root(vec<LANES> value) {
  for (int lane = 0; lane < LANES; ++lane) value[lane] = std::sqrt(value[lane]);
  return value;
}

// a * b + c in one rounding. Only functions here use it: what a module multiplies and adds is rounded twice, as in torch.
template <int LANES> inline vec<LANES> fused(vec<LANES> a, vec<LANES> b, vec<LANES> c) {
#if defined(__AVX512F__)
  if constexpr (LANES == 16) return (vec<16>)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#endif
#if defined(__FMA__)
  if constexpr (LANES % 8 == 0) {
    __m256 left[LANES / 8], right[LANES / 8], sum[LANES / 8];
    std::memcpy(left, &a, sizeof a);
    std::memcpy(right, &b, sizeof b);
    std::memcpy(sum, &c, sizeof c);
    for (int part = 0; part < LANES / 8; ++part) sum[part] = _mm256_fmadd_ps(left[part], right[part], sum[part]);
    std::memcpy(&c, sum, sizeof c);
    return c;
  }
#endif
  return a * b + c;
}

// The polynomial of x with these coefficients, that of the highest power first.
template <int LANES, int COUNT> inline vec<LANES> polynomial(vec<LANES> x, const float (&coefficients)[COUNT]) {
  vec<LANES> value = vec<LANES>{} + coefficients[0];
#pragma GCC unroll 16
  for (int place = 1; place < COUNT; ++place) value = fused<LANES>(value, x, vec<LANES>{} + coefficients[place]);
  return value;
}

// e ** x to about one unit in the last place; 0 below -86.6 (where the result would be under 2.5e-38), NaN and infinities
// as they should be. Cody and Waite's reduction by multiples of log(2), then the polynomial of Moshier's Cephes library.
template <int LANES> inline vec<LANES> exponential(vec<LANES> x) {
  using V = vec<LANES>;
  using I = ivec<LANES>;
  constexpr float ROUND = 12582912.f;  // 1.5 * 2 ** 23: adding it rounds to an integer, which is then in the low bits
  static constexpr float TERMS[] = {1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f,
                                    4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f};
  const V shifted = fused<LANES>(x, V{} + 1.44269504f, V{} + ROUND);
  const V whole = shifted - ROUND;
  const V r = fused<LANES>(whole, V{} + 2.12194440e-4f, fused<LANES>(whole, V{} - 0.693359375f, x));
  const V p = fused<LANES>(polynomial<LANES>(r, TERMS), r * r, r) + 1.f;
  const I half_power = ((I)shifted - 0x4b400000 + 126) << 23;  // 2 ** (whole - 1), as 2 ** 128 has no exponent bits
  const V value = p * 2.f * (V)half_power;
  const V high = x > 88.7228f ? V{} + std::numeric_limits<float>::infinity() : value;
  return x < -86.6f ? V{} : high;
}

// The natural logarithm to about one unit in the last place, by the same library: x = 2 ** n * (1 + f) with f around 0.
// -Inf of zeros, NaN of negative numbers and of NaN.
template <int LANES> inline vec<LANES> logarithm(vec<LANES> x) {
  using V = vec<LANES>;
  using I = ivec<LANES>;
  static constexpr float TERMS[] = {7.0376836292e-2f, -1.1514610310e-1f, 1.1676998740e-1f, -1.2420140846e-1f, 1.4249322787e-1f,
                                    -1.6668057665e-1f, 2.0000714765e-1f, -2.4999993993e-1f, 3.3333331174e-1f};
  constexpr float LEAST = std::numeric_limits<float>::min(), MOST = std::numeric_limits<float>::max();
  constexpr int32_t ROOT = 0x3f3504f3;  // the square root of a half
  const V normal = x < LEAST ? x * 8388608.f : x;  // 2 ** 23
  const I bits = (I)normal - ROOT, power = bits >> 23;
  const V n = __builtin_convertvector(power, V) - (x < LEAST ? V{} + 23.f : V{});
  const V f = (V)((bits & 0x7fffff) + ROOT) - 1.f, square = f * f;
  const V bend = fused<LANES>(n, V{} - 2.12194440e-4f, polynomial<LANES>(f, TERMS) * square * f) - 0.5f * square;
  const V value = fused<LANES>(n, V{} + 0.693359375f, f + bend);
  const V inside = x > MOST ? x : value;
  const V low = x == 0.f ? V{} - std::numeric_limits<float>::infinity() : V{} + std::numeric_limits<float>::quiet_NaN();
  return x > 0.f ? inside : low;
}

// Near zero by the odd polynomial of the same library, elsewhere from the exponential. Of NaN it is NaN.
template <int LANES> inline vec<LANES> tangent(vec<LANES> x) {
  using V = vec<LANES>;
  static constexpr float TERMS[] = {-5.70498872745e-3f, 2.06390887954e-2f, -5.37397155531e-2f, 1.33314422036e-1f, -3.33332819422e-1f};
  const V square = x * x;
  const V near = fused<LANES>(polynomial<LANES>(square, TERMS) * square, x, x);
  const V far = 1.f - 2.f / (exponential<LANES>(2.f * x) + 1.f);
  return magnitude(x) < 0.625f ? near : far;
}

// The error function, by polynomials of the same library: in x up to 1, and of exp(-x * x) / x in 1 / (x * x) above.
template <int LANES> inline vec<LANES> error_function(vec<LANES> x) {
  using V = vec<LANES>;
  static constexpr float NEAR[] = {7.853861353153693e-5f, -8.010193625184903e-4f, 5.188327685732524e-3f, -2.685381193529856e-2f,
                                   1.128358514861418e-1f, -3.761262582423300e-1f, 1.128379165726710e+0f};
  static constexpr float TO_2[] = {2.326819970068386e-2f, -1.387039388740657e-1f, 3.687424674597105e-1f,
                                   -5.824733027278666e-1f, 6.210004621745983e-1f, -4.944515323274145e-1f,
                                   3.404879937665872e-1f, -2.741127028184656e-1f, 5.638259427386472e-1f};
  static constexpr float FROM_2[] = {-1.047766399936249e+1f, 1.297719955372516e+1f, -7.495518717768503e+0f, 2.921019019210786e+0f,
                                     -1.015265279202700e+0f, 4.218463358204948e-1f, -2.820767439740514e-1f, 5.641895067754075e-1f};
  const V near = polynomial<LANES>(x * x, NEAR) * x;
  const V size = smaller_or_nan(magnitude(x), V{} + 5.f), over = 1.f / (size * size);
  const V rest = exponential<LANES>(-size * size) / size *
                 (size < 2.f ? polynomial<LANES>(over, TO_2) : polynomial<LANES>(over, FROM_2));
  const V far = x < 0.f ? rest - 1.f : 1.f - rest;
  return magnitude(x) < 1.f ? near : far;
}

// Sums of a vector's first lanes, each lane's with its own.
template <int LANES, int STEP = 1> inline vec<LANES> running_sum(vec<LANES> value) {
  if constexpr (STEP < LANES) {
#if defined(__clang__)
    vec<LANES> before{};
    for (int lane = STEP; lane < LANES; ++lane) before[lane] = value[lane - STEP];
#else
    ivec<LANES> from;  // of zeros and the vector, one after the other
#pragma GCC unroll 16
    for (int lane = 0; lane < LANES; ++lane) from[lane] = lane < STEP ? 0 : LANES + lane - STEP;
    const vec<LANES> before = __builtin_shuffle(vec<LANES>{}, value, from);
#endif
    return running_sum<LANES, 2 * STEP>(value + before);
  }
  return value;
}

// The places of a vector's elements, as floats.
template <int LANES> inline vec<LANES> positions(int64_t at) {
  vec<LANES> value;
  for (int lane = 0; lane < LANES; ++lane) value[lane] = static_cast<float>(at + lane);
  return value;
}

// The same as whole numbers, and whole numbers as floats.
template <int LANES> inline uvec<LANES> numbers(int64_t at) {
  uvec<LANES> value;
  for (int lane = 0; lane < LANES; ++lane) value[lane] = static_cast<uint32_t>(at + lane);
  return value;
}
template <int LANES> inline vec<LANES> to_float(uvec<LANES> value) { return __builtin_convertvector(value, vec<LANES>); }

// In place: the sum up to each element, in double precision, as torch has it. Vectors gained nothing.
template <int LANES> inline void running_total(float* row, int64_t cols) {
  double sum = 0.;
  for (int64_t at = 0; at < cols; ++at) row[at] = static_cast<float>(sum += row[at]);
}

// In place: sorted, NaN as the largest and -0 before 0. Short rows by how many elements are before each one, longer ones by bytes, the lowest
// first; a byte that all elements share costs nothing.
template <int LANES, bool DOWN> inline void sorted(float* row, int64_t cols) {
  using I = ivec<LANES>;
  constexpr int64_t SHORT_ROW = 128;
  constexpr int32_t NO_NUMBER = std::numeric_limits<int32_t>::max();
  static thread_local std::vector<int32_t> memory;
  memory.resize(2 * (cols + LANES));
  int32_t *keys = memory.data(), *to = keys + cols + LANES;
  for (int64_t i = 0; i < cols; ++i) {
    int32_t bits;
    std::memcpy(&bits, row + i, sizeof bits);
    const int32_t key = bits ^ (bits >> 31 & NO_NUMBER);  // in the order of the numbers
    keys[i] = (row[i] != row[i] ? NO_NUMBER : key) ^ (DOWN ? -1 : 0);
  }
  if (cols <= SHORT_ROW) {
    I lanes;
    for (int lane = 0; lane < LANES; ++lane) lanes[lane] = lane;
    for (int64_t at = 0; at < cols; at += LANES) {
      I mine, before{};
      std::memcpy(&mine, keys + at, sizeof mine);
      const int64_t after = std::min(at + LANES, cols);
      for (int64_t j = 0; j < at; ++j) before -= I{} + keys[j] <= mine;
      for (int64_t j = at; j < after; ++j) {
        const I one = I{} + keys[j];
        before -= (one < mine) | ((one == mine) & (lanes > static_cast<int32_t>(j - at)));
      }
      for (int64_t j = after; j < cols; ++j) before -= I{} + keys[j] < mine;
      for (int64_t j = at; j < after; ++j) to[before[j - at]] = mine[j - at];
    }
    std::swap(keys, to);
  } else {
    uint32_t starts[4][256] = {};
    const auto byte_of = [](int32_t key, int byte) { return (static_cast<uint32_t>(key) ^ 0x80000000u) >> (8 * byte) & 255; };
    for (int64_t i = 0; i < cols; ++i)
      for (int byte = 0; byte < 4; ++byte) ++starts[byte][byte_of(keys[i], byte)];
    for (int byte = 0; byte < 4; ++byte) {
      uint32_t* start = starts[byte];
      if (start[byte_of(keys[0], byte)] == cols) continue;
      uint32_t sum = 0;
      for (int value = 0; value < 256; ++value) sum += std::exchange(start[value], sum);
      for (int64_t i = 0; i < cols; ++i) to[start[byte_of(keys[i], byte)]++] = keys[i];
      std::swap(keys, to);
    }
  }
  for (int64_t i = 0; i < cols; ++i) {
    const int32_t key = keys[i] ^ (DOWN ? -1 : 0);
    const int32_t bits = key == NO_NUMBER ? 0x7fc00000 : key ^ (key >> 31 & NO_NUMBER);
    std::memcpy(row + i, &bits, sizeof bits);
  }
}
template <int LANES> inline void sorted_up(float* row, int64_t cols) { sorted<LANES, false>(row, cols); }
template <int LANES> inline void sorted_down(float* row, int64_t cols) { sorted<LANES, true>(row, cols); }

// log(exp(a) + exp(b)), as torch's own: infinities of one sign stay, NaN too.
inline float joined_logsumexp(float a, float b) {
  const float less = smaller_or_nan(a, b), more = larger_or_nan(a, b);
  return less != more || std::isfinite(less) ? std::log1p(std::exp(less - more)) + more : a;
}

// In place: the logarithm of the sum of the exponentials up to each element. Each span of a row has one largest value, from which
// its exponentials are taken. Where a span begins far below it, or something is not finite, it goes element by element.
template <int LANES> inline void running_logsumexp(float* row, int64_t cols) {
  using V = vec<LANES>;
  constexpr int64_t SPAN = 8 * LANES;
  constexpr float FAR = 60.f;  // exp(-60) is a normal number, and so is what rounding leaves of it
  constexpr float NOTHING = -std::numeric_limits<float>::infinity();
  float most = NOTHING;
  double sum = 1.;  // together what came before: most + log(sum)
  for (int64_t begin = 0; begin < cols; begin += SPAN) {
    const int64_t end = std::min(begin + SPAN, cols);
    const auto value_at = [&](int64_t at) {
      if (at + LANES <= end) return load<LANES>(row + at);
      V value = V{} + NOTHING;
      std::memcpy(&value, row + at, (end - at) * sizeof(float));
      return value;
    };
    V parts = V{} + most;
    for (int64_t at = begin; at < end; at += LANES) parts = larger_or_nan(value_at(at), parts);
    const float largest = fold<LANES>(parts, [](auto a, auto b) { return larger_or_nan(a, b); });
    if (!(larger_or_nan(most, row[begin]) > largest - FAR) || !std::isfinite(largest)) {
      most += static_cast<float>(std::log(sum));
      for (int64_t i = begin; i < end; ++i) row[i] = most = joined_logsumexp(most, row[i]);
      sum = 1.;
      continue;
    }
    sum *= std::exp(static_cast<double>(most) - largest);
    most = largest;
    for (int64_t at = begin; at < end; at += LANES) {
      const V sums = running_sum<LANES>(exponential<LANES>(value_at(at) - most));
      const V value = logarithm<LANES>(sums + static_cast<float>(sum)) + most;
      if (at + LANES <= end)
        store<LANES>(row + at, value);
      else
        std::memcpy(row + at, &value, (end - at) * sizeof(float));
      sum += sums[LANES - 1];
    }
  }
}

// A row of `cols` floats in vectors. VECTORS > 0: exactly that many, unrolled, for short rows, where setting up loops would
// cost more than the work. VECTORS == 0: any number. When LANES does not divide `cols`, the last vector overlaps its
// neighbour: writing the overlap twice writes the same values, and a sum takes only the `fresh` lanes.
template <int LANES_, int VECTORS> struct Row {
  static constexpr int LANES = LANES_;
  static constexpr bool SHORT = VECTORS > 0;
  using V = vec<LANES>;
  int64_t cols, last;
  ivec<LANES> fresh;  // -1 in lanes of the last vector that no other vector covers, 0 in the others

  explicit Row(int64_t cols) : cols(cols), last(cols - LANES) {
    const int64_t left = cols % LANES ? cols % LANES : LANES;
    for (int lane = 0; lane < LANES; ++lane) fresh[lane] = lane >= LANES - left ? -1 : 0;
  }

  // Calls body(position, n) for every vector but the last; n tells neighbours apart, for independent accumulators.
  template <typename Body> inline void each(Body&& body) const {
    if constexpr (SHORT) {
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

  // Sums over the row of each of the N vectors that values(position) gives. In two levels, 16 additions into an accumulator
  // and then those partial sums: rounding grows with a few dozen operations, not with the length of the row.
  template <int N, typename Values> inline std::array<float, N> sums(Values&& values) const {
    constexpr int64_t SPAN = 64 * LANES;
    V total[N] = {}, part[4][N] = {};
    const auto add = [&](int64_t at, int n) {
      const std::array<V, N> found = values(at);
      for (int k = 0; k < N; ++k) part[n][k] += found[k];
    };
    const auto collect = [&] {
      for (int k = 0; k < N; ++k) {
        total[k] += (part[0][k] + part[1][k]) + (part[2][k] + part[3][k]);
        for (int n = 0; n < 4; ++n) part[n][k] = V{};
      }
    };
    if constexpr (SHORT) {
      each([&](int64_t at, int n) { add(at, n % 4); });
    } else {
      int64_t at = 0;
      const auto four = [&] {
        for (int n = 0; n < 4; ++n) add(at + n * LANES, n);
      };
      while (at + SPAN < cols) {
        for (const int64_t end = at + SPAN; at < end; at += 4 * LANES) four();
        collect();
      }
      for (; at + 4 * LANES < cols; at += 4 * LANES) four();
      for (; at + LANES < cols; at += LANES) add(at, 0);
    }
    const std::array<V, N> tail = values(last);
    for (int k = 0; k < N; ++k) part[3][k] += fresh ? tail[k] : V{};
    collect();
    std::array<float, N> results;
    for (int k = 0; k < N; ++k) results[k] = sum_of<LANES>(total[k]);
    return results;
  }

  template <typename Value> inline float sum(Value&& value) const {
    return sums<1>([&](int64_t at) { return std::array<V, 1>{value(at)}; })[0];
  }

  // One value of the row of all that value(position) gives, by join(a, b).
  template <typename Value, typename Join> inline float joined(Value&& value, Join join) const {
    V part[4];
    for (V& one : part) one = value(last);
    each([&](int64_t at, int n) { part[n % 4] = join(value(at), part[n % 4]); });
    return fold<LANES>(join(join(part[0], part[1]), join(part[2], part[3])), join);
  }

  // Writes value(position) to the row `out`.
  template <typename Value> inline void write(float* out, Value&& value) const {
    each([&](int64_t at, int) { store<LANES>(out + at, value(at)); });
    store<LANES>(out + last, value(last));
  }

  // The same past the caches, apart from the pieces before the first and after the last whole cache line. An ordinary store
  // must not touch a line that is streamed: it would be fetched again.
  template <typename Value> inline void write_streaming(float* out, Value&& value) const {
    static_assert(LANES == 16, "a streaming store writes a whole cache line");
    int64_t at = (-reinterpret_cast<intptr_t>(out) & 63) / sizeof(float);
    store_lanes(out, value(0), 0, at);
    for (; at + 16 <= cols; at += 16) stream(out + at, value(at));
    store_lanes(out + at, value(last), 16 - (cols - at), cols - at);
  }

  template <bool STREAM, typename Value> inline void put(float* out, Value&& value) const {
    if constexpr (STREAM)
      write_streaming(out, value);
    else
      write(out, value);
  }
};

// Calls run(row, streaming) with the row type that suits `cols` (at least 1).
template <typename Run> inline void with_row(int64_t cols, bool streaming, Run&& run) {
  constexpr std::false_type plain{};
  if (cols < 8) return run(Row<1, 0>(cols), plain);
  if (cols == 8) return run(Row<8, 1>(cols), plain);
  if (cols < 16) return run(Row<8, 2>(cols), plain);
  switch ((cols + 15) / 16) {
    case 1: return run(Row<16, 1>(cols), plain);
    case 2: return run(Row<16, 2>(cols), plain);
    case 3: return run(Row<16, 3>(cols), plain);
    case 4: return run(Row<16, 4>(cols), plain);
    case 5: return run(Row<16, 5>(cols), plain);
    case 6: return run(Row<16, 6>(cols), plain);
    case 7: return run(Row<16, 7>(cols), plain);
    case 8: return run(Row<16, 8>(cols), plain);
  }
  if (streaming) {
    run(Row<16, 0>(cols), std::true_type{});
    return finish_streaming();
  }
  run(Row<16, 0>(cols), plain);
}

// Rows are worked on in blocks, phase by phase, so that the chains of dependent operations of several rows overlap and what
// is computed once a row is computed for many at a time. A block of longer rows is small enough for the L1 cache.
constexpr int BLOCK_ROWS = 16;

template <typename AnyRow> inline int64_t block_rows(const AnyRow& row) {
  return AnyRow::SHORT ? BLOCK_ROWS : std::clamp<int64_t>(BLOCK_ELEMENTS / row.cols, 1, BLOCK_ROWS);
}

// Streaming pays where the output would not stay in the last-level cache until it is read; below that it only
// throws away a cached line (measured on a Xeon with 36 MB: 4 MB out 0.7x, 16 MB out 1.2x to 2.4x).
inline bool too_large_to_cache(int64_t output_elements) {
#if defined(_SC_LEVEL3_CACHE_SIZE)
  static const int64_t last_level_bytes = std::max<int64_t>(sysconf(_SC_LEVEL3_CACHE_SIZE), 8 << 20);
#else
  static const int64_t last_level_bytes = 8 << 20;
#endif
  return output_elements * static_cast<int64_t>(sizeof(float)) > last_level_bytes / 4;
}

inline int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Splits rows among threads. The region costs some 3 us, so that small inputs stay on one thread; torch's own setting
// (torch.set_num_threads) is the upper limit, and the threads are torch's: linking finds the OpenMP library that it brings.
//
// A region ends when its last thread arrives. If another process holds that thread's core, this is a scheduler slice later:
// 3 ms were measured for a kernel of 20 us. After a region that took far longer than one thread would have needed, the
// caller therefore works alone for a while, longer each time it happens again.
template <typename Rows> void split_rows(int64_t rows, int64_t cols, int64_t elements_per_thread, const Rows& work) {
  constexpr int64_t SHORTEST_PAUSE_NS = 20'000'000, LONGEST_PAUSE_NS = 1'000'000'000;
  static std::atomic<int64_t> alone_until_ns{0}, pause_ns{SHORTEST_PAUSE_NS};
  const int64_t threads =
      std::min({static_cast<int64_t>(omp_get_max_threads()), rows, rows * cols / elements_per_thread});
  if (threads <= 1) return work(int64_t{0}, rows);
  const int64_t start_ns = now_ns();
  if (start_ns < alone_until_ns.load(std::memory_order_relaxed)) return work(int64_t{0}, rows);
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t part = 0; part < threads; ++part) work(rows * part / threads, rows * (part + 1) / threads);
  const int64_t took_ns = now_ns() - start_ns;
  const int64_t pause = pause_ns.load(std::memory_order_relaxed);
  if (took_ns < 200'000 + 8 * rows * cols) {
    if (pause != SHORTEST_PAUSE_NS) pause_ns.store(SHORTEST_PAUSE_NS, std::memory_order_relaxed);
  } else {
    alone_until_ns.store(start_ns + took_ns + pause, std::memory_order_relaxed);
    pause_ns.store(std::min(2 * pause, LONGEST_PAUSE_NS), std::memory_order_relaxed);
  }
}

}  // namespace
