// Eight fp32 lanes from and to fp32 or bf16 memory. Internal linkage: only *_avx2.cpp include it.
#pragma once
#include <immintrin.h>

#include "element_type.h"

namespace pelton {

// The first `count` of eight lanes, 0 < count < 8.
struct FirstLanes {
  int count;
};

struct AllLanes {};

static inline __m256i lane_mask(FirstLanes lanes) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(lanes.count), lane);
}

static inline __m256 widen(__m128i bf16) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bf16), 16));
}

// Rounds to nearest even as element_type.h does.
static inline __m128i narrow(__m256 value) {
  const __m256i bits = _mm256_castps_si256(value);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
  const __m256i high = _mm256_blendv_epi8(_mm256_srli_epi32(rounded, 16), _mm256_set1_epi32(0x7fc0), nan);
  return _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
}

// Lanes that are not loaded are zero.
static inline __m256 load_lanes(const float* from, AllLanes = {}) { return _mm256_loadu_ps(from); }
static inline __m256 load_lanes(const float* from, FirstLanes lanes) {
  return _mm256_maskload_ps(from, lane_mask(lanes));
}
static inline __m256 load_lanes(const BFloat16* from, AllLanes = {}) {
  return widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
static inline __m256 load_lanes(const BFloat16* from, FirstLanes lanes) {
  alignas(16) BFloat16 values[8] = {};
  for (int i = 0; i < lanes.count; ++i) values[i] = from[i];
  return load_lanes(values);
}

static inline void store_lanes(float* to, __m256 value, AllLanes = {}) { _mm256_storeu_ps(to, value); }
static inline void store_lanes(float* to, __m256 value, FirstLanes lanes) {
  _mm256_maskstore_ps(to, lane_mask(lanes), value);
}
static inline void store_lanes(BFloat16* to, __m256 value, AllLanes = {}) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), narrow(value));
}
static inline void store_lanes(BFloat16* to, __m256 value, FirstLanes lanes) {
  alignas(16) BFloat16 values[8];
  store_lanes(values, value);
  for (int i = 0; i < lanes.count; ++i) to[i] = values[i];
}

// Calls step(lanes) with the lanes of a vector of which `count` elements are left, if any.
template <typename Step>
static inline void with_lanes(int64_t count, Step step) {
  if (count >= 8) {
    step(AllLanes{});
  } else if (count > 0) {
    step(FirstLanes{static_cast<int>(count)});
  }
}

// Calls step(i, AllLanes) for each whole vector of a row of `size` elements, then step(i, FirstLanes) for the rest.
template <typename Step>
static inline void for_each_vector(int64_t size, Step step) {
  int64_t i = 0;
  for (; i + 8 <= size; i += 8) step(i, AllLanes{});
  if (i < size) step(i, FirstLanes{static_cast<int>(size - i)});
}

// value * 2^n for whole n in [-252, 252], in two factors: a result too small for a normal number is rounded once.
static inline __m256 scale_by_power(__m256 value, __m256 n) {
  const __m256i exponent = _mm256_cvtps_epi32(n);
  const __m256i half = _mm256_srai_epi32(exponent, 1);
  const __m256i bias = _mm256_set1_epi32(127);
  const __m256i first = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
  const __m256i second = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(exponent, half), bias), 23);
  return _mm256_mul_ps(_mm256_mul_ps(value, _mm256_castsi256_ps(first)), _mm256_castsi256_ps(second));
}

// e^x for x <= 0: 2^n times a polynomial in the rest r of x = n ln 2 + r (Cephes expf). NaN stays NaN.
static inline __m256 exp_vector(__m256 x) {
  x = _mm256_max_ps(_mm256_set1_ps(-104.0f), x);  // e^-104 rounds to zero; of a NaN, max returns its second operand
  const __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504088896341f)),
                                   _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), x);
  r = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4f), r);
  __m256 sum = _mm256_set1_ps(1.9875691500e-4f);
  sum = _mm256_fmadd_ps(sum, r, _mm256_set1_ps(1.3981999507e-3f));
  sum = _mm256_fmadd_ps(sum, r, _mm256_set1_ps(8.3334519073e-3f));
  sum = _mm256_fmadd_ps(sum, r, _mm256_set1_ps(4.1665795894e-2f));
  sum = _mm256_fmadd_ps(sum, r, _mm256_set1_ps(1.6666665459e-1f));
  sum = _mm256_fmadd_ps(sum, r, _mm256_set1_ps(5.0000001201e-1f));
  sum = _mm256_fmadd_ps(sum, _mm256_mul_ps(r, r), _mm256_add_ps(r, _mm256_set1_ps(1.0f)));
  return scale_by_power(sum, n);
}

// x / (1 + e^-x). With d = e^-|x| nothing overflows: 1 / (1 + d) for x >= 0, d / (1 + d) below.
static inline __m256 silu(__m256 x) {
  const __m256 one = _mm256_set1_ps(1.0f);
  const __m256 d = exp_vector(_mm256_or_ps(x, _mm256_set1_ps(-0.0f)));
  const __m256 negative = _mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_LT_OQ);
  return _mm256_mul_ps(x, _mm256_div_ps(_mm256_blendv_ps(one, d, negative), _mm256_add_ps(one, d)));
}

// Of eight lanes in a fixed order, halving the vector each time.
template <typename Join>
static inline float join_lanes(__m256 value, Join join) {
  __m128 lanes = join(_mm256_castps256_ps128(value), _mm256_extractf128_ps(value, 1));
  lanes = join(lanes, _mm_movehl_ps(lanes, lanes));
  return _mm_cvtss_f32(join(lanes, _mm_movehdup_ps(lanes)));
}

template <typename Join>
static inline int32_t join_lanes(__m256i value, Join join) {
  __m128i lanes = join(_mm256_castsi256_si128(value), _mm256_extracti128_si256(value, 1));
  lanes = join(lanes, _mm_shuffle_epi32(lanes, 0x4e));
  return _mm_cvtsi128_si32(join(lanes, _mm_shuffle_epi32(lanes, 0xb1)));
}

static inline float sum_lanes(__m256 value) {
  return join_lanes(value, [](__m128 a, __m128 b) { return _mm_add_ps(a, b); });
}

static inline float largest_lane(__m256 value) {
  return join_lanes(value, [](__m128 a, __m128 b) { return _mm_max_ps(a, b); });
}

}  // namespace pelton
