// Vector pieces that the AVX-512 and AMX attention kernels share. Include from files compiled for AVX-512 only.
#pragma once
#include "attention.h"
#include "attention_prefetch.h"
#include "lanes_avx512.h"

namespace pelton {

inline constexpr int kLanes = 16;
inline constexpr int kCacheLine = 64;

// The even and the odd elements of 32 bf16 values.
static inline __m512 even_bfloat16(__m512i values) { return _mm512_castsi512_ps(_mm512_slli_epi32(values, 16)); }
static inline __m512 odd_bfloat16(__m512i values) {
  return _mm512_castsi512_ps(_mm512_and_si512(values, _mm512_set1_epi32(static_cast<int>(0xffff0000))));
}

// 2^x, exactly 1 at 0 and exactly 0 below -150. Relative error below 1e-7 (the polynomial of Cephes' exp2f).
static inline __m512 exp2_vector(__m512 x) {
  x = _mm512_max_ps(_mm512_set1_ps(-200.0f), x);  // in this order a NaN stays one
  const __m512 whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 part = _mm512_sub_ps(x, whole);
  __m512 result = _mm512_set1_ps(1.535336188319500e-4f);
  result = _mm512_fmadd_ps(result, part, _mm512_set1_ps(1.339887440266574e-3f));
  result = _mm512_fmadd_ps(result, part, _mm512_set1_ps(9.618437357674640e-3f));
  result = _mm512_fmadd_ps(result, part, _mm512_set1_ps(5.550332471162809e-2f));
  result = _mm512_fmadd_ps(result, part, _mm512_set1_ps(2.402264791363012e-1f));
  result = _mm512_fmadd_ps(result, part, _mm512_set1_ps(6.931472028550421e-1f));
  result = _mm512_fmadd_ps(result, part, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(result, whole);
}

// tanh(x) = sign(x) (1 - e) / (1 + e) with e = exp(-2 |x|); absolute error below 2e-7.
static inline __m512 tanh_vector(__m512 x) {
  const __m512 e = exp2_vector(_mm512_mul_ps(_mm512_abs_ps(x), _mm512_set1_ps(-2.885390081777927f)));
  const __m512 one = _mm512_set1_ps(1.0f);
  const __m512 magnitude = _mm512_div_ps(_mm512_sub_ps(one, e), _mm512_add_ps(one, e));
  const __m512 sign = _mm512_and_ps(x, _mm512_set1_ps(-0.0f));
  return _mm512_or_ps(magnitude, sign);
}

// The keys of a segment that one token sees, as lanes of its key vectors.
struct VisibleKeys {
  __m512i first;  // relative to the segment
  __m512i count;

  __mmask16 lanes(int vector) const {
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i key = _mm512_add_epi32(lane, _mm512_set1_epi32(vector * kLanes));
    return _mm512_cmplt_epu32_mask(_mm512_sub_epi32(key, first), count);
  }
};

static inline VisibleKeys visible_keys(const AttentionProblem& problem, const AttentionSegment& segment, int position) {
  const int earliest = position - (problem.window - 1) - segment.begin;
  const int first = earliest > segment.first_key ? earliest : segment.first_key;
  const int last = position - segment.begin;
  const int end = last + 1 < segment.end_key ? last + 1 : segment.end_key;
  return {_mm512_set1_epi32(first), _mm512_set1_epi32(end > first ? end - first : 0)};
}

// One query's weights of a key vector times the scales of its values. Where a weight is 0 the scale may be anything.
static inline __m512 scaled_weights(const AttentionSegment& segment, int vector, __m512 weights) {
  const __mmask16 some = _mm512_cmp_ps_mask(weights, _mm512_setzero_ps(), _CMP_NEQ_UQ);
  return _mm512_maskz_mul_ps(some, weights, _mm512_maskz_loadu_ps(some, segment.value_scales[vector]));
}

// The vector itself, or the nearest one to visit: what is computed from that is never looked at.
static inline int visited(const AttentionSegment& segment, int vector) {
  if (vector < segment.first_vector) return segment.first_vector;
  return vector < segment.end_vector ? vector : segment.end_vector - 1;
}

// Turns one query's scores [kSegment], still to be multiplied by `scale` and by the scales of the keys, into weights
// 2^(score - maximum) over the segment's key vectors; zeros where masked.
static inline void softmax_scores(const AttentionProblem& problem, const AttentionSegment& segment, int position,
                                  float scale, float* scores, float* maximum, float* sum) {
  const VisibleKeys visible = visible_keys(problem, segment, position);
  __m512 largest = _mm512_set1_ps(kEmptyMax);
  for (int v = segment.first_vector; v < segment.end_vector; ++v) {
    __m512 score = _mm512_load_ps(scores + v * kLanes);
    if (is_scaled(problem.cache_type)) {
      score = _mm512_mul_ps(score, _mm512_loadu_ps(segment.key_scales[v]));
      _mm512_store_ps(scores + v * kLanes, score);
    }
    if (problem.capped_scale > 0) {
      const __m512 scaled = _mm512_mul_ps(score, _mm512_set1_ps(scale));
      score = _mm512_mul_ps(tanh_vector(scaled), _mm512_set1_ps(problem.capped_scale));
      _mm512_store_ps(scores + v * kLanes, score);
    }
    largest = _mm512_mask_max_ps(largest, visible.lanes(v), score, largest);
  }
  const float rest = problem.capped_scale > 0 ? 1.0f : scale;  // of the scale, still to be applied
  const __m512 top = _mm512_set1_ps(_mm512_reduce_max_ps(largest));
  *maximum = _mm512_cvtss_f32(top) * rest;
  __m512 total = _mm512_setzero_ps();
  for (int v = segment.first_vector; v < segment.end_vector; ++v) {
    const __m512 distance = _mm512_sub_ps(_mm512_load_ps(scores + v * kLanes), top);
    const __m512 exponent = _mm512_mul_ps(distance, _mm512_set1_ps(rest));
    const __m512 weight = _mm512_maskz_mov_ps(visible.lanes(v), exp2_vector(exponent));
    total = _mm512_add_ps(total, weight);
    _mm512_store_ps(scores + v * kLanes, weight);
  }
  *sum = _mm512_reduce_add_ps(total);
}

// AttentionKernel::merge and AttentionKernel::store, defined in attention_avx512.cpp.
void merge_avx512(const AttentionProblem& problem, int queries, const SoftmaxState& into, const SoftmaxState& from);
void store_avx512(const AttentionProblem& problem, const AttentionTile& tile, const SoftmaxState& state);

}  // namespace pelton
