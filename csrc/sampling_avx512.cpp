// The passes of sampling over the vocabulary, sixteen logits at a time.
#include "lanes_avx512.h"
#include "sampling.h"

namespace pelton {
namespace {

void mask_logits(float* logits, int64_t size, const uint32_t* allowed) {
  const __m512 lowest = _mm512_set1_ps(-__builtin_inff());
  const auto* bits = reinterpret_cast<const __mmask16*>(allowed);
  for_each_vector(size, [&](int64_t i, auto lanes) {
    const __mmask16 forbidden = ~bits[i / 16];
    if (forbidden == 0) return;
    const __m512 values = load_lanes(logits + i, lanes);
    store_lanes(logits + i, _mm512_mask_min_ps(values, forbidden, lowest, values), lanes);  // a NaN stays: it is second
  });
}

float largest_logit(const float* logits, int64_t size) {
  __m512 largest = _mm512_set1_ps(-__builtin_inff());
  __mmask16 nan = 0;
  for_each_vector(size, [&](int64_t i, auto lanes) {
    const __m512 values = load_lanes(logits + i, lanes);
    nan |= _mm512_cmp_ps_mask(values, values, _CMP_UNORD_Q);
    if constexpr (sizeof(lanes) == sizeof(__mmask16)) {
      largest = _mm512_mask_max_ps(largest, lanes, largest, values);
    } else {
      largest = _mm512_max_ps(largest, values);
    }
  });
  return nan != 0 ? __builtin_nanf("") : _mm512_reduce_max_ps(largest);
}

void weigh_logits(const float* logits, int64_t size, float largest, float inverse_temperature, float* weights,
                  double* block_sums) {
  const __m512 offset = _mm512_set1_ps(largest), factor = _mm512_set1_ps(inverse_temperature);
  for (int64_t begin = 0; begin < size; begin += kWeightBlock) {
    const int64_t count = size - begin < kWeightBlock ? size - begin : kWeightBlock;
    __m512d low = _mm512_setzero_pd(), high = _mm512_setzero_pd();
    for_each_vector(count, [&](int64_t i, auto lanes) {
      const __m512 distance = _mm512_sub_ps(load_lanes(logits + begin + i, lanes), offset);
      __m512 weight = exp_vector(_mm512_mul_ps(distance, factor));
      if constexpr (sizeof(lanes) == sizeof(__mmask16)) weight = _mm512_maskz_mov_ps(lanes, weight);
      store_lanes(weights + begin + i, weight, lanes);
      low = _mm512_add_pd(low, _mm512_cvtps_pd(_mm512_castps512_ps256(weight)));
      high = _mm512_add_pd(high, _mm512_cvtps_pd(_mm512_extractf32x8_ps(weight, 1)));
    });
    block_sums[begin / kWeightBlock] = _mm512_reduce_add_pd(_mm512_add_pd(low, high));
  }
}

int64_t gather_weights(const float* weights, int64_t size, float share, int32_t* tokens, float* gathered) {
  const __m512 least = _mm512_set1_ps(share), zero = _mm512_setzero_ps();
  const __m512i lanes_from_0 = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  int64_t count = 0;
  for_each_vector(size, [&](int64_t i, auto lanes) {
    const __m512 values = load_lanes(weights + i, lanes);  // lanes past the end are 0
    const __mmask16 positive = _mm512_cmp_ps_mask(values, zero, _CMP_GT_OQ);
    const __mmask16 chosen = _mm512_mask_cmp_ps_mask(positive, values, least, _CMP_GE_OQ);
    if (chosen == 0) return;
    const __m512i ids = _mm512_add_epi32(_mm512_set1_epi32(static_cast<int>(i)), lanes_from_0);
    _mm512_storeu_ps(gathered + count, _mm512_maskz_compress_ps(chosen, values));
    _mm512_storeu_si512(tokens + count, _mm512_maskz_compress_epi32(chosen, ids));
    count += __builtin_popcount(chosen);
  });
  return count;
}

}  // namespace

const SamplingKernel kAvx512Sampling{mask_logits, largest_logit, weigh_logits, gather_weights};

}  // namespace pelton
