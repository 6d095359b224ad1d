// Rows of x as int8, 16 elements at a time, with the bits of quantized_rows.h. Internal linkage: only *_vnni.cpp and
// *_avx512.cpp include it.
#pragma once
#include "lanes_avx512.h"
#include "quantized_rows.h"

namespace pelton {

// As rotate_scalar, for a block in four vectors.
static inline void rotate(__m512 (&block)[4]) {
#pragma GCC unroll 4
  for (int v = 0; v < 4; ++v) {
    const auto changed = static_cast<__mmask16>(kRotationSigns >> 16 * v);
    block[v] = _mm512_mask_xor_ps(block[v], changed, block[v], _mm512_set1_ps(-0.0f));
  }
  const __m512 outer_low = _mm512_add_ps(block[0], block[2]), outer_high = _mm512_sub_ps(block[0], block[2]);
  const __m512 inner_low = _mm512_add_ps(block[1], block[3]), inner_high = _mm512_sub_ps(block[1], block[3]);
  block[0] = _mm512_add_ps(outer_low, inner_low);
  block[1] = _mm512_sub_ps(outer_low, inner_low);
  block[2] = _mm512_add_ps(outer_high, inner_high);
  block[3] = _mm512_sub_ps(outer_high, inner_high);
  const __m512 pair_signs = _mm512_set4_ps(-1.0f, -1.0f, 1.0f, 1.0f);
  const __m512 signs = _mm512_set4_ps(-1.0f, 1.0f, -1.0f, 1.0f);
#pragma GCC unroll 4
  for (__m512& vector : block) {
    vector = _mm512_fmadd_ps(vector, pair_signs, _mm512_permute_ps(vector, 0x4e));
    vector = _mm512_fmadd_ps(vector, signs, _mm512_permute_ps(vector, 0xb1));
  }
}

// The largest magnitude as an integer, in which a NaN is above all numbers.
static inline __m512i magnitude_bits(__m512 values) {
  return _mm512_and_si512(_mm512_castps_si512(values), _mm512_set1_epi32(0x7fffffff));
}

// 16 groups at a time: first all values and largest magnitudes, then all q, so that no group waits for another.
constexpr int64_t kGroupsAtOnce = 16;

template <int64_t kSize>
struct UnroundedGroups {
  alignas(64) float values[kGroupsAtOnce * kSize];
  alignas(64) int32_t largest_bits[kGroupsAtOnce];
};

// Values of x from `first` on, of whole blocks as long as x lasts. Returns the number of groups.
template <bool kRotated, int64_t kSize, typename X>
static inline int64_t read_groups(const X* x, int64_t first, int64_t num_inputs, UnroundedGroups<kSize>& groups) {
  constexpr int64_t kBlock = kRotated ? kRotatedInputs : kSize;
  const int64_t end = std::min(num_inputs, first + kGroupsAtOnce * kSize);
  int64_t group = 0;
  for (float* values = groups.values; first < end; first += kBlock, values += kBlock) {
    __m512 block[kBlock / 16];
    if (first + kBlock <= num_inputs) {
#pragma GCC unroll 4
      for (int64_t v = 0; v < kBlock / 16; ++v) block[v] = load_lanes(x + first + v * 16);
    } else {
      for (int64_t v = 0; v < kBlock / 16; ++v) {
        const int64_t count = num_inputs - first - v * 16;
        block[v] = count > 0 ? load_lanes(x + first + v * 16, lane_mask(count)) : _mm512_setzero_ps();
      }
    }
    if constexpr (kRotated) rotate(block);
#pragma GCC unroll 2
    for (int64_t k = 0; k < kBlock; k += kSize) {
      __m512i largest = _mm512_setzero_si512();
#pragma GCC unroll 4
      for (int64_t v = k / 16; v < (k + kSize) / 16; ++v) {
        _mm512_store_ps(values + v * 16, block[v]);
        largest = _mm512_max_epi32(largest, magnitude_bits(block[v]));
      }
      groups.largest_bits[group++] = _mm512_reduce_max_epi32(largest);
    }
  }
  return group;
}

// Rounds the values of a group, times `factor`, to q and returns their sum. A factor of zero makes zeros.
template <int64_t kSize>
static inline int32_t round_group(const float* values, float factor, int8_t* q) {
  const __m512 factors = _mm512_set1_ps(factor);
  const __mmask16 usable = _mm512_cmp_ps_mask(factors, _mm512_setzero_ps(), _CMP_NEQ_OQ);
  __m512i sums = _mm512_setzero_si512();
#pragma GCC unroll 4
  for (int64_t v = 0; v < kSize / 16; ++v) {
    const __m512 scaled = _mm512_mul_ps(_mm512_load_ps(values + v * 16), factors);
    const __m512i rounded = _mm512_maskz_cvtps_epi32(usable, scaled);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(q + v * 16), _mm512_cvtepi32_epi8(rounded));
    sums = _mm512_add_epi32(sums, rounded);
  }
  return _mm512_reduce_add_epi32(sums);
}

// As quantize_row_scalar.
template <bool kRotated, typename X, typename Group>
static inline void quantize_row_vectors(const X* x, int64_t num_inputs, int32_t offset, Group* groups, int64_t stride) {
  constexpr int64_t kSize = Group::kSize;
  for (int64_t first = 0; first < num_inputs; first += kGroupsAtOnce * kSize) {
    UnroundedGroups<kSize> unrounded;
    const int64_t count = read_groups<kRotated>(x, first, num_inputs, unrounded);
    const __m512 largest = _mm512_castsi512_ps(_mm512_load_si512(unrounded.largest_bits));
    const __m512 inverse = _mm512_div_ps(_mm512_set1_ps(127.0f), largest);
    const __mmask16 usable = _mm512_cmp_ps_mask(inverse, _mm512_setzero_ps(), _CMP_GT_OQ) &
                             _mm512_cmp_ps_mask(inverse, _mm512_set1_ps(0x1.fffffep127f), _CMP_LE_OQ);
    alignas(64) float factors[kGroupsAtOnce], scales[kGroupsAtOnce];
    _mm512_store_ps(factors, _mm512_maskz_mov_ps(usable, inverse));
    constexpr float kNorm = kRotated ? kRotationNorm : 1.0f;
    _mm512_store_ps(scales, _mm512_mul_ps(largest, _mm512_set1_ps(kNorm / 127.0f)));
    for (int64_t g = 0; g < count; ++g, groups += stride) {
      const int32_t sum = round_group<kSize>(unrounded.values + g * kSize, factors[g], groups->q);
      groups->scale = scales[g];
      groups->scaled_sum = scales[g] * static_cast<float>(sum);
      groups->start = -offset * sum;
    }
  }
}

}  // namespace pelton
