// The reader of stored_rows.h, 16 elements at a time.
#include "lanes_avx512.h"
#include "stored_rows.h"

namespace pelton {
namespace {

inline __m512 to_floats(__m128i bytes) { return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes)); }

inline float half_at(const uint8_t* at) {
  uint16_t half;
  std::memcpy(&half, at, sizeof half);
  return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(half)));
}

void read_q8_0(const uint8_t* block, int64_t num_inputs, float* out) {
  for (int64_t k = 0; k < num_inputs; k += 32, block += 34) {
    const __m512 scale = _mm512_set1_ps(half_at(block));
#pragma GCC unroll 2
    for (int64_t v = 0; v < 2; ++v) {
      const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(block + 2 + v * 16));
      _mm512_storeu_ps(out + k + v * 16, _mm512_mul_ps(scale, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes))));
    }
  }
}

template <bool kHasMinimum>
void read_q4(const uint8_t* block, int64_t num_inputs, float* out) {
  constexpr int64_t kHeader = kHasMinimum ? 4 : 2;
  const __m128i nibble = _mm_set1_epi8(15);
  for (int64_t k = 0; k < num_inputs; k += 32, block += kHeader + 16) {
    const __m512 scale = _mm512_set1_ps(half_at(block));
    const __m512 minimum = kHasMinimum ? _mm512_set1_ps(half_at(block + 2)) : _mm512_setzero_ps();
    const __m512 offset = _mm512_set1_ps(kHasMinimum ? 0.0f : 8.0f);
    const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(block + kHeader));
    const __m512 low = to_floats(_mm_and_si128(codes, nibble));
    const __m512 high = to_floats(_mm_and_si128(_mm_srli_epi16(codes, 4), nibble));
    _mm512_storeu_ps(out + k, _mm512_add_ps(_mm512_mul_ps(scale, _mm512_sub_ps(low, offset)), minimum));
    _mm512_storeu_ps(out + k + 16, _mm512_add_ps(_mm512_mul_ps(scale, _mm512_sub_ps(high, offset)), minimum));
  }
}

}  // namespace

void read_row_avx512(const StoredRows& rows, int64_t row, float* out) {
  const uint8_t* from = rows.data + row * rows.row_bytes;
  switch (rows.type) {
    case StoredType::kFloat32:
      std::memcpy(out, from, rows.num_inputs * sizeof(float));
      return;
    case StoredType::kBFloat16:
      for_each_vector(rows.num_inputs, [&](int64_t k, auto lanes) {
        store_lanes(out + k, load_lanes(reinterpret_cast<const BFloat16*>(from) + k, lanes), lanes);
      });
      return;
    case StoredType::kFloat16:
      for_each_vector(rows.num_inputs, [&](int64_t k, auto) {
        const __mmask16 mask = lane_mask(rows.num_inputs - k);
        store_lanes(out + k, _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, from + k * 2)), mask);
      });
      return;
    case StoredType::kQ4_0:
      return read_q4<false>(from, rows.num_inputs, out);
    case StoredType::kQ4_1:
      return read_q4<true>(from, rows.num_inputs, out);
    case StoredType::kQ8_0:
      return read_q8_0(from, rows.num_inputs, out);
  }
}

}  // namespace pelton
