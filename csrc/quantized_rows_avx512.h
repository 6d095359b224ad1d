// Rows of x as int8, 16 elements at a time, with the bits of quantized_rows.h. For *_avx512.cpp and *_vnni.cpp.
#pragma once
#include "lanes_avx512.h"
#include "quantized_rows.h"

namespace pelton {

// One group, whose elements load(v) gives as vectors of 16.
template <typename Group, typename Load>
static inline void quantize_group(const Load& load, int32_t offset, Group* group) {
  constexpr int64_t kVectors = Group::kSize / 16;
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  __m512 values[kVectors];
  __m512i bits = _mm512_setzero_si512();
#pragma GCC unroll 4
  for (int64_t v = 0; v < kVectors; ++v) {
    values[v] = load(v);
    bits = _mm512_max_epi32(bits, _mm512_and_si512(_mm512_castps_si512(values[v]), magnitude));
  }
  const int32_t largest_bits = _mm512_reduce_max_epi32(bits);
  float largest;
  std::memcpy(&largest, &largest_bits, sizeof largest);
  const float inverse = 127.0f / largest;
  const bool usable = inverse > 0.0f && inverse <= 0x1.fffffep127f;
  const auto mask = static_cast<__mmask16>(usable ? 0xffff : 0);
  const __m512 factor = _mm512_set1_ps(inverse);
  __m512i sums = _mm512_setzero_si512();
#pragma GCC unroll 4
  for (int64_t v = 0; v < kVectors; ++v) {
    const __m512i q = _mm512_maskz_cvtps_epi32(mask, _mm512_mul_ps(values[v], factor));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(group->q + v * 16), _mm512_cvtepi32_epi8(q));
    sums = _mm512_add_epi32(sums, q);
  }
  const int32_t sum = _mm512_reduce_add_epi32(sums);
  group->scale = largest * (1.0f / 127.0f);
  group->scaled_sum = group->scale * static_cast<float>(sum);
  group->start = -offset * sum;
}

// As quantize_row_scalar.
template <typename X, typename Group>
static inline void quantize_row_vectors(const X* x, int64_t num_inputs, int32_t offset, Group* groups, int64_t stride) {
  int64_t first = 0;
  for (; first + Group::kSize <= num_inputs; first += Group::kSize, groups += stride) {
    quantize_group([&](int64_t v) { return load_lanes(x + first + v * 16); }, offset, groups);
  }
  if (first == num_inputs) return;
  quantize_group(
      [&](int64_t v) {
        const int64_t count = num_inputs - first - v * 16;
        return count > 0 ? load_lanes(x + first + v * 16, lane_mask(count)) : _mm512_setzero_ps();
      },
      offset, groups);
}

}  // namespace pelton
