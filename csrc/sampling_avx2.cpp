// The passes of sampling over the vocabulary, eight logits at a time.
#include "lanes_avx2.h"
#include "sampling.h"

namespace pelton {
namespace {

// `value` in the lanes that there are, `rest` in the others.
inline __m256 keep_lanes(__m256 value, __m256, AllLanes) { return value; }
inline __m256 keep_lanes(__m256 value, __m256 rest, FirstLanes lanes) {
  return _mm256_blendv_ps(rest, value, _mm256_castsi256_ps(lane_mask(lanes)));
}

void mask_logits(float* logits, int64_t size, const uint32_t* allowed) {
  const __m256 lowest = _mm256_set1_ps(-__builtin_inff());
  const __m256i bit_of_lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  const auto* bits = reinterpret_cast<const unsigned char*>(allowed);
  for_each_vector(size, [&](int64_t i, auto lanes) {
    const int byte = bits[i / 8];
    if (byte == 0xff) return;
    const __m256i present = _mm256_and_si256(_mm256_set1_epi32(byte), bit_of_lane);
    const __m256 is_allowed = _mm256_castsi256_ps(_mm256_cmpeq_epi32(present, bit_of_lane));
    const __m256 values = load_lanes(logits + i, lanes);
    const __m256 masked = _mm256_min_ps(lowest, values);  // a NaN stays: it is second
    store_lanes(logits + i, _mm256_blendv_ps(masked, values, is_allowed), lanes);
  });
}

float largest_logit(const float* logits, int64_t size) {
  const __m256 least = _mm256_set1_ps(-__builtin_inff());
  __m256 largest = least, nan = _mm256_setzero_ps();
  for_each_vector(size, [&](int64_t i, auto lanes) {
    const __m256 values = load_lanes(logits + i, lanes);
    nan = _mm256_or_ps(nan, _mm256_cmp_ps(values, values, _CMP_UNORD_Q));
    largest = _mm256_max_ps(largest, keep_lanes(values, least, lanes));
  });
  return _mm256_movemask_ps(nan) != 0 ? __builtin_nanf("") : largest_lane(largest);
}

double sum_lanes(__m256d value) {
  const __m128d pair = _mm_add_pd(_mm256_castpd256_pd128(value), _mm256_extractf128_pd(value, 1));
  return _mm_cvtsd_f64(_mm_add_sd(pair, _mm_unpackhi_pd(pair, pair)));
}

void weigh_logits(const float* logits, int64_t size, float largest, float inverse_temperature, float* weights,
                  double* block_sums) {
  const __m256 offset = _mm256_set1_ps(largest), factor = _mm256_set1_ps(inverse_temperature);
  for (int64_t begin = 0; begin < size; begin += kWeightBlock) {
    const int64_t count = size - begin < kWeightBlock ? size - begin : kWeightBlock;
    __m256d low = _mm256_setzero_pd(), high = _mm256_setzero_pd();
    for_each_vector(count, [&](int64_t i, auto lanes) {
      const __m256 distance = _mm256_sub_ps(load_lanes(logits + begin + i, lanes), offset);
      const __m256 weight = keep_lanes(exp_vector(_mm256_mul_ps(distance, factor)), _mm256_setzero_ps(), lanes);
      store_lanes(weights + begin + i, weight, lanes);
      low = _mm256_add_pd(low, _mm256_cvtps_pd(_mm256_castps256_ps128(weight)));
      high = _mm256_add_pd(high, _mm256_cvtps_pd(_mm256_extractf128_ps(weight, 1)));
    });
    block_sums[begin / kWeightBlock] = sum_lanes(_mm256_add_pd(low, high));
  }
}

int64_t gather_weights(const float* weights, int64_t size, float share, int32_t* tokens, float* gathered) {
  const __m256 least = _mm256_set1_ps(share), zero = _mm256_setzero_ps();
  int64_t count = 0;
  for_each_vector(size, [&](int64_t i, auto lanes) {
    const __m256 values = load_lanes(weights + i, lanes);  // lanes past the end are 0
    const __m256 enough =
        _mm256_and_ps(_mm256_cmp_ps(values, zero, _CMP_GT_OQ), _mm256_cmp_ps(values, least, _CMP_GE_OQ));
    for (auto chosen = static_cast<unsigned>(_mm256_movemask_ps(enough)); chosen != 0; chosen &= chosen - 1) {
      const int64_t token = i + __builtin_ctz(chosen);
      tokens[count] = static_cast<int32_t>(token);
      gathered[count++] = weights[token];
    }
  });
  return count;
}

}  // namespace

const SamplingKernel kAvx2Sampling{mask_logits, largest_logit, weigh_logits, gather_weights};

}  // namespace pelton
