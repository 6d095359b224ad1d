// Rows of x as int8, eight elements at a time, with the bits of quantized_rows.h, and their exact products with codes
// of weights. For *_avx2.cpp.
#pragma once
#include "lanes_avx2.h"
#include "quantized_rows.h"

namespace pelton {

// As rotate_scalar, for a block in eight vectors.
static inline void rotate(__m256 (&block)[8]) {
  const __m256i sign = _mm256_castps_si256(_mm256_set1_ps(-0.0f));
  const __m256i shifts = _mm256_setr_epi32(31, 30, 29, 28, 27, 26, 25, 24);
#pragma GCC unroll 8
  for (int v = 0; v < 8; ++v) {
    const auto bits = static_cast<int32_t>(kRotationSigns >> 8 * v & 0xff);
    // Bit i of the byte moves to the sign of lane i.
    const __m256i signs =
        _mm256_and_si256(_mm256_sllv_epi32(_mm256_set1_epi32(bits), shifts), sign);
    block[v] = _mm256_xor_ps(block[v], _mm256_castsi256_ps(signs));
  }
  for (const int distance : {4, 2}) {
#pragma GCC unroll 8
    for (int v = 0; v < 8; ++v) {
      if ((v & distance) != 0) continue;
      const __m256 low = block[v], high = block[v + distance];
      block[v] = _mm256_add_ps(low, high);
      block[v + distance] = _mm256_sub_ps(low, high);
    }
  }
  const __m256 pair_signs = _mm256_setr_ps(1, 1, -1, -1, 1, 1, -1, -1);
  const __m256 signs = _mm256_setr_ps(1, -1, 1, -1, 1, -1, 1, -1);
#pragma GCC unroll 8
  for (__m256& vector : block) {
    vector = _mm256_fmadd_ps(vector, pair_signs, _mm256_permute_ps(vector, 0x4e));
    vector = _mm256_fmadd_ps(vector, signs, _mm256_permute_ps(vector, 0xb1));
  }
}

// As quantize_group_scalar.
template <typename Group>
static inline void quantize_group(const __m256* values, float norm, int32_t offset, Group* group) {
  constexpr int kVectors = static_cast<int>(Group::kSize / 8);
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  __m256i bits = _mm256_setzero_si256();
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    bits = _mm256_max_epi32(bits, _mm256_and_si256(_mm256_castps_si256(values[v]), magnitude));
  }
  const int32_t largest_bits = join_lanes(bits, [](__m128i a, __m128i b) { return _mm_max_epi32(a, b); });
  float largest;
  std::memcpy(&largest, &largest_bits, sizeof largest);
  const float inverse = 127.0f / largest;
  const bool usable = inverse > 0.0f && inverse <= 0x1.fffffep127f;
  const __m256i mask = _mm256_set1_epi32(usable ? -1 : 0);
  const __m256 factor = _mm256_set1_ps(inverse);
  __m256i sums = _mm256_setzero_si256();
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    const __m256i q = _mm256_and_si256(_mm256_cvtps_epi32(_mm256_mul_ps(values[v], factor)), mask);
    sums = _mm256_add_epi32(sums, q);
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(q), _mm256_extracti128_si256(q, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(group->q + v * 8), _mm_packs_epi16(words, words));
  }
  const int32_t sum = join_lanes(sums, [](__m128i a, __m128i b) { return _mm_add_epi32(a, b); });
  group->scale = largest * (norm / 127.0f);
  group->scaled_sum = group->scale * static_cast<float>(sum);
  group->start = -offset * sum;
}

// As quantize_row_scalar.
template <bool kRotated, typename X, typename Group>
static inline void quantize_row_vectors(const X* x, int64_t num_inputs, int32_t offset, Group* groups, int64_t stride) {
  constexpr int kVectors = static_cast<int>((kRotated ? kRotatedInputs : Group::kSize) / 8);
  constexpr int kGroupVectors = static_cast<int>(Group::kSize / 8);
  for (int64_t first = 0; first < num_inputs; first += kVectors * 8) {
    __m256 block[kVectors] = {};
    if (first + kVectors * 8 <= num_inputs) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) block[v] = load_lanes(x + first + v * 8);
    } else {
      for (int v = 0; v < kVectors; ++v) {
        const int64_t at = first + v * 8;
        with_lanes(num_inputs - at, [&](auto lanes) { block[v] = load_lanes(x + at, lanes); });
      }
    }
    if constexpr (kRotated) rotate(block);
    for (int v = 0; v < kVectors; v += kGroupVectors, groups += stride) {
      quantize_group(block + v, kRotated ? kRotationNorm : 1.0f, offset, groups);
    }
  }
}

static inline __m256i broadcast_quad(const int8_t* q) {
  int32_t quad;
  std::memcpy(&quad, q, sizeof quad);
  return _mm256_set1_epi32(quad);
}

// Adds up the four products of eight outputs. `codes` are q + 128. Pairs of products are added up in 16 bits: unsigned
// codes up to 255 times 127 would overflow, |q| up to 128 do not (2 * 128 * 127 = 32512), so signs go to x.
static inline __m256i add_signed_products(__m256i sums, __m256i q, __m256i magnitude, __m256i x) {
  const __m256i pairs = _mm256_maddubs_epi16(magnitude, _mm256_sign_epi8(x, q));
  return _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

}  // namespace pelton
