// Vectors of floats through the compiler's own vector types: one source for AVX-512, AVX2, SSE and NEON. The compiler
// splits a vector where the machine's registers are narrower.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <omp.h>
#include <unistd.h>
#if defined(__AVX__)
#include <immintrin.h>
#endif

namespace {

template <int LANES> struct Vector {
  typedef float type __attribute__((vector_size(LANES * sizeof(float))));
  typedef int32_t bits __attribute__((vector_size(LANES * sizeof(int32_t))));
};
template <int LANES> using vec = typename Vector<LANES>::type;
template <int LANES> using ivec = typename Vector<LANES>::bits;

template <int LANES> inline vec<LANES> load(const float* from) {
  vec<LANES> value;
  std::memcpy(&value, from, sizeof value);
  return value;
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

inline void finish_streaming() {
#if defined(__AVX__)
  _mm_sfence();
#endif
}

template <int LANES> inline float sum_of(vec<LANES> value) {
  if constexpr (LANES == 1) {
    return value[0];
  } else {
    vec<LANES / 2> halves[2];
    std::memcpy(halves, &value, sizeof value);
    return sum_of<LANES / 2>(halves[0] + halves[1]);
  }
}

// torch's relu: keeps NaN.
template <int LANES> inline vec<LANES> relu(vec<LANES> value) { return value < 0.f ? vec<LANES>{} : value; }

// 1 in the lanes of the last vector that no earlier vector covered, 0 in the others.
template <int LANES> inline vec<LANES> fresh_lanes(int64_t cols) {
  vec<LANES> fresh;
  for (int lane = 0; lane < LANES; ++lane) fresh[lane] = lane >= LANES - cols % LANES ? 1.f : 0.f;
  return fresh;
}

// Streams a row of at least 16 columns; ordinary stores only up to the first whole cache line and after the last.
template <typename Value> inline void stream_row(float* out, int64_t cols, Value&& value) {
  int64_t at = (-reinterpret_cast<intptr_t>(out) & 63) / sizeof(float);
  if (at) store<16>(out, value(0));
  for (; at + 16 <= cols; at += 16) stream(out + at, value(at));
  if (at != cols) store<16>(out + cols - 16, value(cols - 16));
}

// Streaming pays where the output would not stay in the last-level cache until somebody reads it; below that it only
// throws away a cached line (measured on a Xeon with 36 MB: 4 MB out 0.7x, 16 MB out 1.2x to 2.4x).
inline bool too_large_to_cache(int64_t output_bytes) {
#if defined(_SC_LEVEL3_CACHE_SIZE)
  static const int64_t last_level = std::max<int64_t>(sysconf(_SC_LEVEL3_CACHE_SIZE), 8 << 20);
#else
  static const int64_t last_level = 8 << 20;
#endif
  return output_bytes > last_level / 4;
}

// Splits rows among threads. Waking a second thread costs 3 to 5 us, so that small inputs stay on one; torch's own
// setting (torch.set_num_threads) is the upper limit.
template <typename Body> void split_rows(int64_t rows, int64_t cols, int64_t elements_per_thread, const Body& body) {
  const int64_t threads =
      std::min({static_cast<int64_t>(omp_get_max_threads()), rows, rows * cols / elements_per_thread});
  if (threads <= 1) return body(int64_t{0}, rows);
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t part = 0; part < threads; ++part) body(rows * part / threads, rows * (part + 1) / threads);
}

}  // namespace
