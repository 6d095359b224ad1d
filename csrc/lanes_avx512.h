// Sixteen fp32 lanes from and to fp32 or bf16 memory. Internal linkage: only *_avx512.cpp and *_amx.cpp include it.
#pragma once
// GCC 12 takes the deliberately undefined operands inside its own intrinsics for mistakes (GCC bug 105593).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop

#include "element_type.h"

namespace pelton {

// The first `count` of 16 lanes.
static inline __mmask16 lane_mask(int64_t count) {
  return count >= 16 ? __mmask16{0xffff} : static_cast<__mmask16>((1u << count) - 1u);
}

static inline __m512 widen(__m256i bf16) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bf16), 16));
}

// Rounds to nearest even as element_type.h does. The BF16 instruction set's conversion would flush denormals.
static inline __m256i narrow(__m512 value) {
  const __m512i bits = _mm512_castps_si512(value);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
  const __m512i high = _mm512_mask_blend_epi32(nan, _mm512_srli_epi32(rounded, 16), _mm512_set1_epi32(0x7fc0));
  return _mm512_cvtepi32_epi16(high);
}

struct AllLanes {};

static inline __m512 load_lanes(const float* from, AllLanes = {}) { return _mm512_loadu_ps(from); }
static inline __m512 load_lanes(const float* from, __mmask16 mask) { return _mm512_maskz_loadu_ps(mask, from); }
static inline __m512 load_lanes(const BFloat16* from, AllLanes = {}) {
  return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
static inline __m512 load_lanes(const BFloat16* from, __mmask16 mask) {
  return widen(_mm256_maskz_loadu_epi16(mask, from));
}

static inline void store_lanes(float* to, __m512 value, AllLanes = {}) { _mm512_storeu_ps(to, value); }
static inline void store_lanes(float* to, __m512 value, __mmask16 mask) { _mm512_mask_storeu_ps(to, mask, value); }
static inline void store_lanes(BFloat16* to, __m512 value, AllLanes = {}) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), narrow(value));
}
static inline void store_lanes(BFloat16* to, __m512 value, __mmask16 mask) {
  _mm256_mask_storeu_epi16(to, mask, narrow(value));
}

// Calls step(i, AllLanes) for each whole vector of a row of `size` elements, then step(i, mask) for the rest.
template <typename Step>
static inline void for_each_vector(int64_t size, Step step) {
  int64_t i = 0;
  for (; i + 16 <= size; i += 16) step(i, AllLanes{});
  if (i < size) step(i, lane_mask(size - i));
}

// e^x for x <= 0: 2^n times a polynomial in the rest r of x = n ln 2 + r (Cephes expf). NaN stays NaN.
static inline __m512 exp_vector(__m512 x) {
  x = _mm512_max_ps(_mm512_set1_ps(-104.0f), x);  // e^-104 rounds to zero; of a NaN, max returns its second operand
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504088896341f)),
                                        _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
  __m512 sum = _mm512_set1_ps(1.9875691500e-4f);
  sum = _mm512_fmadd_ps(sum, r, _mm512_set1_ps(1.3981999507e-3f));
  sum = _mm512_fmadd_ps(sum, r, _mm512_set1_ps(8.3334519073e-3f));
  sum = _mm512_fmadd_ps(sum, r, _mm512_set1_ps(4.1665795894e-2f));
  sum = _mm512_fmadd_ps(sum, r, _mm512_set1_ps(1.6666665459e-1f));
  sum = _mm512_fmadd_ps(sum, r, _mm512_set1_ps(5.0000001201e-1f));
  sum = _mm512_fmadd_ps(sum, _mm512_mul_ps(r, r), _mm512_add_ps(r, _mm512_set1_ps(1.0f)));
  return _mm512_scalef_ps(sum, n);
}

// x / (1 + e^-x). With d = e^-|x| nothing overflows: 1 / (1 + d) for x >= 0, d / (1 + d) below. The reciprocal of
// 1 + d, in (1, 2], is an estimate and one Newton step, a third of the time of a division.
static inline __m512 silu(__m512 x) {
  const __m512 one = _mm512_set1_ps(1.0f);
  const __m512 d = exp_vector(_mm512_or_ps(x, _mm512_set1_ps(-0.0f)));
  const __m512 denominator = _mm512_add_ps(one, d);
  __m512 reciprocal = _mm512_rcp14_ps(denominator);
  reciprocal = _mm512_mul_ps(reciprocal, _mm512_fnmadd_ps(denominator, reciprocal, _mm512_set1_ps(2.0f)));
  const __mmask16 negative = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ);
  return _mm512_mul_ps(x, _mm512_mask_mul_ps(reciprocal, negative, reciprocal, d));
}

}  // namespace pelton
