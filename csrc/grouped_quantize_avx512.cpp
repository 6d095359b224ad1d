// The search of grouped_quantize.h for 16 outputs at a time, one a lane, with the bits of the portable version.
#include "grouped_quantize.h"
#include "quantized_rows_avx512.h"
#include "transpose_avx512.h"

namespace pelton {
namespace {

struct Affines {
  __m512 scale, minimum;
};

inline __m512 codes(__m512 weights, __m512 minimum, __m512 inverse) {
  const __m512 scaled = _mm512_mul_ps(_mm512_sub_ps(weights, minimum), inverse);
  const __m512 rounded = _mm512_roundscale_ps(scaled, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  return _mm512_min_ps(_mm512_max_ps(rounded, _mm512_setzero_ps()), _mm512_set1_ps(15.0f));
}

inline __m512 inverse_of(__m512 scale) {
  const __mmask16 positive = _mm512_cmp_ps_mask(scale, _mm512_setzero_ps(), _CMP_GT_OQ);
  return _mm512_maskz_div_ps(positive, _mm512_set1_ps(1.0f), scale);
}

// weights[k] holds element k of 16 groups.
inline Affines fit(const __m512 (&weights)[kGroupInputs]) {
  const __m512 per_count = _mm512_set1_ps(1.0f / kGroupInputs);
  __m512 smallest = weights[0], largest = weights[0], sum_w = _mm512_setzero_ps();
  for (const __m512& weight : weights) {
    smallest = _mm512_min_ps(smallest, weight);
    largest = _mm512_max_ps(largest, weight);
    sum_w = _mm512_add_ps(sum_w, weight);
  }
  const __m512 middle = _mm512_mul_ps(_mm512_set1_ps(0.5f), _mm512_add_ps(smallest, largest));
  const __m512 width = _mm512_sub_ps(largest, smallest);
  const __m512 centered = _mm512_fmadd_ps(_mm512_set1_ps(-1.0f * kGroupInputs), middle, sum_w);
  Affines best{_mm512_div_ps(width, _mm512_set1_ps(15.0f)),
               _mm512_add_ps(smallest, _mm512_sub_ps(sum_w, sum_w))};
  __m512 best_gain = _mm512_set1_ps(-1.0f);
  for (const float range : kTrialRanges) {
    const __m512 scale = _mm512_div_ps(_mm512_mul_ps(width, _mm512_set1_ps(range)), _mm512_set1_ps(15.0f));
    const __m512 minimum = _mm512_fmadd_ps(scale, _mm512_set1_ps(-7.5f), middle);
    const __m512 inverse = inverse_of(scale);
    __m512 sum_q = _mm512_setzero_ps(), sum_qq = _mm512_setzero_ps(), sum_qw = _mm512_setzero_ps();
    for (const __m512& weight : weights) {
      const __m512 q = codes(weight, minimum, inverse);
      sum_q = _mm512_add_ps(sum_q, q);
      sum_qq = _mm512_fmadd_ps(q, q, sum_qq);
      sum_qw = _mm512_fmadd_ps(q, _mm512_sub_ps(weight, middle), sum_qw);
    }
    const __m512 variance = _mm512_fnmadd_ps(sum_q, _mm512_mul_ps(sum_q, per_count), sum_qq);
    const __m512 covariance = _mm512_fnmadd_ps(sum_q, _mm512_mul_ps(centered, per_count), sum_qw);
    const __m512 fitted = _mm512_div_ps(covariance, variance);
    const __m512 gain = _mm512_mul_ps(covariance, fitted);
    const __mmask16 better = _mm512_cmp_ps_mask(gain, best_gain, _CMP_GT_OQ);
    const __m512 offset = _mm512_mul_ps(_mm512_fnmadd_ps(fitted, sum_q, centered), per_count);
    best_gain = _mm512_mask_mov_ps(best_gain, better, gain);
    best.scale = _mm512_mask_mov_ps(best.scale, better, fitted);
    best.minimum = _mm512_mask_mov_ps(best.minimum, better, _mm512_add_ps(offset, middle));
  }
  return best;
}

// Element k of a group of all 16 rows, for all k.
inline void load_group(const QuantizedBlock& block, int64_t first, __m512 (&weights)[kGroupInputs]) {
#pragma GCC unroll 2
  for (int64_t half = 0; half < kGroupInputs; half += 16) {
    __m512i square[16];
#pragma GCC unroll 16
    for (int64_t r = 0; r < 16; ++r) square[r] = _mm512_loadu_si512(block.rows + r * block.size + first + half);
    transpose_square(square);
#pragma GCC unroll 16
    for (int64_t k = 0; k < 16; ++k) weights[half + k] = _mm512_castsi512_ps(square[k]);
  }
}

inline bool all_finite(__m512 values) {
  return _mm512_cmp_ps_mask(_mm512_sub_ps(values, values), _mm512_setzero_ps(), _CMP_NEQ_UQ) == 0;
}

}  // namespace

void rotate_row_avx512(float* row, int64_t size) {
  for (int64_t first = 0; first < size; first += kRotatedInputs) {
    __m512 block[4];
#pragma GCC unroll 4
    for (int64_t v = 0; v < 4; ++v) block[v] = _mm512_loadu_ps(row + first + v * 16);
    rotate(block);
#pragma GCC unroll 4
    for (int64_t v = 0; v < 4; ++v) {
      _mm512_storeu_ps(row + first + v * 16, _mm512_mul_ps(block[v], _mm512_set1_ps(kRotationNorm)));
    }
  }
}

bool grouped_quantize_block_avx512(const QuantizedBlock& block) {
  constexpr int64_t kBytes = grouped_bytes(GroupedKind::kFourBitsMinimum);
  constexpr int64_t kCodesBytes = grouped_codes_bytes(GroupedKind::kFourBitsMinimum);
  const auto mask = static_cast<__mmask16>(lane_mask(block.end) & ~lane_mask(block.begin));
  bool finite = true;
  for (int64_t g = 0; g < block.size / kGroupInputs; ++g) {
    uint8_t* group = block.panel + g * kBytes;
    __m512 weights[kGroupInputs];
    load_group(block, g * kGroupInputs, weights);
    const Affines affines = fit(weights);
    const __m256i scales = _mm512_cvtps_ph(affines.scale, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m256i minimums = _mm512_cvtps_ph(affines.minimum, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm256_mask_storeu_epi16(group + kCodesBytes + block.lane * 2, mask, scales);
    _mm256_mask_storeu_epi16(group + kCodesBytes + kPanelOutputs * 2 + block.lane * 2, mask, minimums);
    const __m512 minimum = _mm512_cvtph_ps(minimums), inverse = inverse_of(_mm512_cvtph_ps(scales));
    finite = finite && all_finite(_mm512_cvtph_ps(scales)) && all_finite(minimum);
    for (int64_t quad = 0; quad < 4; ++quad) {
      __m512i bytes = _mm512_setzero_si512();
      for (int64_t i = 3; i >= 0; --i) {
        const __m512i low = _mm512_cvtps_epi32(codes(weights[quad * 4 + i], minimum, inverse));
        const __m512i high = _mm512_cvtps_epi32(codes(weights[16 + quad * 4 + i], minimum, inverse));
        bytes = _mm512_or_si512(_mm512_slli_epi32(bytes, 8), _mm512_or_si512(low, _mm512_slli_epi32(high, 4)));
      }
      _mm512_mask_storeu_epi32(group + (quad * kPanelOutputs + block.lane) * 4, mask, bytes);
    }
  }
  return finite;
}

}  // namespace pelton
