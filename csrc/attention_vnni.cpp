// Paged attention over int8 caches with AVX-512's sums of products of 16-bit integers. Needs VNNI besides F, BW, DQ and VL.
//
// Queries become integers of up to 16 bits by their largest magnitude, the weights of a segment times the scales of its
// values likewise. So nothing but the cache itself is rounded to 8 bits, and integers add up exactly.
#include "attention_blocks_avx512.h"

namespace pelton {
namespace {

// The largest magnitude in `count` floats, a multiple of 16; NaN where one of them is.
template <typename Load>
float largest_magnitude(int count, Load load) {
  __m512 largest = _mm512_setzero_ps();
  __mmask16 nan = 0;
  for (int i = 0; i < count; i += kLanes) {
    const __m512 magnitude = _mm512_abs_ps(load(i));
    nan |= _mm512_cmp_ps_mask(magnitude, magnitude, _CMP_UNORD_Q);
    largest = _mm512_max_ps(largest, magnitude);
  }
  return nan != 0 ? __builtin_nanf("") : _mm512_reduce_max_ps(largest);
}

struct Int8Fours {
  static constexpr int kDepth = 4;
  static constexpr int kWords = 2;
  using Sum = __m512i;

  static __m512i zero() { return _mm512_setzero_si512(); }
  // The first and third, then the second and fourth element of each lane.
  static void expand(__m512i raw, __m512i operands[2]) {
    operands[0] = _mm512_srai_epi16(_mm512_slli_epi16(raw, 8), 8);
    operands[1] = _mm512_srai_epi16(raw, 8);
  }
  static __m512i dot(__m512i sum, __m512i operand, __m512i word) { return _mm512_dpwssd_epi32(sum, operand, word); }
  static __m512 to_float(__m512i sum) { return _mm512_cvtepi32_ps(sum); }

  static float load_query(const AttentionProblem& problem, int64_t offset, void* words) {
    const auto load = [&](int d) {
      return problem.query_type == ElementType::kBFloat16
                 ? load_lanes(static_cast<const BFloat16*>(problem.query) + offset + d)
                 : load_lanes(static_cast<const float*>(problem.query) + offset + d);
    };
    const float largest = largest_magnitude(problem.head_dim, load);
    // The sum of head_dim products with 8 bits has 31 bits.
    const float limit = static_cast<float>(smaller(kLargest, (1 << 24) / problem.head_dim - 1));
    const __m512 inverse = _mm512_set1_ps(largest > 0 ? limit / largest : 0.0f);
    for (int d = 0; d < problem.head_dim; d += kLanes) {
      store_words(static_cast<int16_t*>(words) + d, _mm512_mul_ps(load(d), inverse));
    }
    return largest / limit * problem.query_scale;
  }

  // The sum of kSegment products with 8 bits has 31 bits.
  static float pack_weights(const AttentionSegment& segment, float* weights) {
    for (int v = segment.first_vector; v < segment.end_vector; ++v) {
      const __m512 scaled = scaled_weights(segment, v, _mm512_load_ps(weights + v * kLanes));
      _mm512_store_ps(weights + v * kLanes, scaled);
    }
    const int begin = segment.first_vector * kLanes, end = segment.end_vector * kLanes;
    const float largest = largest_magnitude(end - begin, [&](int i) { return _mm512_load_ps(weights + begin + i); });
    const __m512 inverse = _mm512_set1_ps(largest > 0 ? kLargest / largest : 0.0f);
    for (int i = begin; i < end; i += kLanes) {
      store_words(reinterpret_cast<int16_t*>(weights) + i, _mm512_mul_ps(_mm512_load_ps(weights + i), inverse));
    }
    return largest / kLargest;
  }

 private:
  static constexpr int kLargest = 32767;

  // 16 values as 16-bit integers, of each four the first, third, second and fourth.
  static void store_words(int16_t* to, __m512 values) {
    const __m256i integers = _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(values));
    constexpr int kOrder = _MM_SHUFFLE(3, 1, 2, 0);
    const __m256i words = _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(integers, kOrder), kOrder);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), words);
  }
};

}  // namespace

const AttentionKernel kVnniAttention{2 * kMaxBlock,
                                     block_scratch_floats<Int8Fours>,
                                     load_block_queries<Int8Fours>,
                                     attend_blocks<Int8Fours>,
                                     merge_avx512,
                                     store_avx512};

}  // namespace pelton
