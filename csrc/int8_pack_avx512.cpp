// Quantization and packing of weights for int8.h, 16 elements at a time, with the bits of the portable version.
#include "int8_pack.h"
#include "quantized_rows_avx512.h"
#include "transpose_avx512.h"

namespace pelton {

float int8_quantize_weights_avx512(float* weights, int64_t size, uint8_t* codes) {
  __m512i bits = _mm512_setzero_si512();
  for (int64_t first = 0; first < size; first += kRotatedInputs) {
    __m512 block[4];
#pragma GCC unroll 4
    for (int64_t v = 0; v < 4; ++v) block[v] = _mm512_loadu_ps(weights + first + v * 16);
    rotate(block);
#pragma GCC unroll 4
    for (int64_t v = 0; v < 4; ++v) {
      _mm512_storeu_ps(weights + first + v * 16, block[v]);
      bits = _mm512_max_epi32(bits, magnitude_bits(block[v]));
    }
  }
  const int32_t largest_bits = _mm512_reduce_max_epi32(bits);
  float largest;
  std::memcpy(&largest, &largest_bits, sizeof largest);
  const float inverse = 127.0f / largest;
  const auto usable = static_cast<__mmask16>(inverse > 0.0f && inverse <= 0x1.fffffep127f ? 0xffff : 0);
  const __m512 factor = _mm512_set1_ps(inverse);
  const __m512i offset = _mm512_set1_epi32(kInt8Offset);
  for (int64_t k = 0; k < size; k += 16) {
    const __m512i q = _mm512_maskz_cvtps_epi32(usable, _mm512_mul_ps(_mm512_loadu_ps(weights + k), factor));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + k), _mm512_cvtepi32_epi8(_mm512_add_epi32(q, offset)));
  }
  return largest * (kRotationNorm / 127.0f);
}

void int8_transpose_avx512(const uint8_t* codes, int64_t padded, uint8_t* lanes) {
  for (int64_t k = 0; k < padded; k += 64) {
    __m512i rows[16];
#pragma GCC unroll 16
    for (int64_t r = 0; r < 16; ++r) rows[r] = _mm512_load_si512(codes + r * padded + k);
    transpose_square(rows);
    // Past the caches: packed weights are read much later, and whole lines need no reading first.
#pragma GCC unroll 16
    for (int64_t r = 0; r < 16; ++r) {
      _mm512_stream_si512(reinterpret_cast<__m512i*>(lanes + int8_code_offset(0, k + r * 4)), rows[r]);
    }
  }
  _mm_sfence();
}

}  // namespace pelton
