// Paged attention with AVX2, in fp32 arithmetic.
//
// A lane of 32 bits holds x neighbours of the cache: x head dimensions of one of 16 keys, or x keys of one of the head
// dimensions. A block of queries walks up the head dimension or the keys; each score and each output is one chain of
// fused multiply-adds in a fixed order, so the size of a block changes nothing but speed.
#include "attention.h"
#include "attention_prefetch.h"
#include "lanes_avx2.h"

namespace pelton {
namespace {

constexpr int kLanes = 8;
constexpr int kMaxBlock = 4;    // queries of a block
constexpr int kBlockSums = 8;   // independent chains, which hide the latency of a multiply-add
constexpr int kHalves = kKeyVector / kLanes;

constexpr int smaller(int a, int b) { return a < b ? a : b; }
constexpr int larger(int a, int b) { return a > b ? a : b; }

struct Float32Cache {
  static constexpr int kDepth = 1;  // x

  // Element `word` of each lane.
  template <int kWord>
  static __m256 expand(__m256i raw) {
    return _mm256_castsi256_ps(raw);
  }
};

struct BFloat16Cache {
  static constexpr int kDepth = 2;

  template <int kWord>
  static __m256 expand(__m256i raw) {
    const __m256i bits = kWord == 0 ? _mm256_slli_epi32(raw, 16)
                                    : _mm256_and_si256(raw, _mm256_set1_epi32(static_cast<int>(0xffff0000u)));
    return _mm256_castsi256_ps(bits);
  }
};

inline __m256i load_raw(const std::byte* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }

// 2^x, exactly 1 at 0 and exactly 0 below -150. Relative error below 1e-7 (the polynomial of Cephes' exp2f).
inline __m256 exp2_vector(__m256 x) {
  x = _mm256_max_ps(_mm256_set1_ps(-200.0f), x);  // in this order a NaN stays one
  const __m256 whole = _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m256 part = _mm256_sub_ps(x, whole);
  __m256 result = _mm256_set1_ps(1.535336188319500e-4f);
  result = _mm256_fmadd_ps(result, part, _mm256_set1_ps(1.339887440266574e-3f));
  result = _mm256_fmadd_ps(result, part, _mm256_set1_ps(9.618437357674640e-3f));
  result = _mm256_fmadd_ps(result, part, _mm256_set1_ps(5.550332471162809e-2f));
  result = _mm256_fmadd_ps(result, part, _mm256_set1_ps(2.402264791363012e-1f));
  result = _mm256_fmadd_ps(result, part, _mm256_set1_ps(6.931472028550421e-1f));
  result = _mm256_fmadd_ps(result, part, _mm256_set1_ps(1.0f));
  return scale_by_power(result, whole);
}

// tanh(x) = sign(x) (1 - e) / (1 + e) with e = exp(-2 |x|); absolute error below 2e-7.
inline __m256 tanh_vector(__m256 x) {
  const __m256 sign = _mm256_and_ps(x, _mm256_set1_ps(-0.0f));
  const __m256 magnitude = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
  const __m256 e = exp2_vector(_mm256_mul_ps(magnitude, _mm256_set1_ps(-2.885390081777927f)));
  const __m256 one = _mm256_set1_ps(1.0f);
  return _mm256_or_ps(_mm256_div_ps(_mm256_sub_ps(one, e), _mm256_add_ps(one, e)), sign);
}

// The vector itself, or the nearest one to visit: what is computed from that is never looked at.
inline int visited(const AttentionSegment& segment, int vector) {
  return larger(segment.first_vector, smaller(vector, segment.end_vector - 1));
}

// sums[query][vector][half] += element kWord of the lanes of each step * that of the queries
template <typename Cache, int kWord, int kQueries, int kVectors>
inline void add_dimension(const std::byte* const (&keys)[kVectors], const float* queries, int head_dim,
                          __m256 (&sums)[kQueries][kVectors][kHalves]) {
  __m256 operands[kVectors][kHalves];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
#pragma GCC unroll 2
    for (int h = 0; h < kHalves; ++h) operands[v][h] = Cache::template expand<kWord>(load_raw(keys[v] + h * 32));
  }
#pragma GCC unroll 4
  for (int q = 0; q < kQueries; ++q) {
    const __m256 query = _mm256_broadcast_ss(queries + q * head_dim + kWord);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
#pragma GCC unroll 2
      for (int h = 0; h < kHalves; ++h) sums[q][v][h] = _mm256_fmadd_ps(query, operands[v][h], sums[q][v][h]);
    }
  }
}

// scores[query][key] of a block of queries and vectors of keys from segment vector `first`. Each step asks for a line of
// the keys of the next vectors and for one of the values.
template <typename Cache, int kQueries, int kVectors>
void score_vectors(const AttentionProblem& problem, const AttentionSegment& segment, int first, const float* queries,
                   float* scores) {
  const std::byte *keys[kVectors], *next_keys[kVectors], *values[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    keys[v] = segment.keys[visited(segment, first + v)];
    next_keys[v] = segment.keys[visited(segment, first + v + kVectors)];
    values[v] = segment.values[visited(segment, first + v)];
  }
  __m256 sums[kQueries][kVectors][kHalves] = {};
  const int64_t step = int64_t{problem.page_size} * 4;
  for (int d = 0; d < problem.head_dim; d += Cache::kDepth) {
    add_dimension<Cache, 0>(keys, queries + d, problem.head_dim, sums);
    if constexpr (Cache::kDepth == 2) add_dimension<Cache, 1>(keys, queries + d, problem.head_dim, sums);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      _mm_prefetch(reinterpret_cast<const char*>(next_keys[v]), _MM_HINT_T0);
      _mm_prefetch(reinterpret_cast<const char*>(values[v]), _MM_HINT_T1);
      keys[v] += step;
      next_keys[v] += step;
      values[v] += 64;
    }
  }
#pragma GCC unroll 4
  for (int q = 0; q < kQueries; ++q) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      float* to = scores + q * kSegment + (first + v) * kKeyVector;
#pragma GCC unroll 2
      for (int h = 0; h < kHalves; ++h) _mm256_store_ps(to + h * kLanes, sums[q][v][h]);
    }
  }
}

// All scores of a block of queries over the segment. Few queries take more keys at a time.
template <typename Cache, int kQueries>
void score_block(const AttentionProblem& problem, const AttentionSegment& segment, const float* queries,
                 float* scores) {
  constexpr int kVectors = larger(1, kBlockSums / (2 * kHalves * kQueries) * 2);
  for (int v = segment.first_vector / kVectors * kVectors; v < segment.end_vector; v += kVectors) {
    score_vectors<Cache, kQueries, kVectors>(problem, segment, v, queries, scores);
  }
}

// The keys of a segment that one token sees are [first, end), relative to the segment.
struct VisibleKeys {
  __m256i before_first, end;

  VisibleKeys(const AttentionProblem& problem, const AttentionSegment& segment, int position) {
    const int earliest = position - (problem.window - 1) - segment.begin;
    before_first = _mm256_set1_epi32(larger(earliest, segment.first_key) - 1);
    end = _mm256_set1_epi32(smaller(position - segment.begin + 1, segment.end_key));
  }

  // Of the keys from `key` on.
  __m256 lanes(int key) const {
    const __m256i keys = _mm256_add_epi32(_mm256_set1_epi32(key), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    return _mm256_castsi256_ps(
        _mm256_and_si256(_mm256_cmpgt_epi32(keys, before_first), _mm256_cmpgt_epi32(end, keys)));
  }
};

// Turns one query's scores [kSegment] into weights 2^(score - maximum) over the segment's key vectors; zeros where masked.
void softmax_scores(const AttentionProblem& problem, const AttentionSegment& segment, int position, float* scores,
                    float* maximum, float* sum) {
  const VisibleKeys visible(problem, segment, position);
  const int begin = segment.first_vector * kKeyVector, end = segment.end_vector * kKeyVector;
  __m256 largest = _mm256_set1_ps(kEmptyMax);
  for (int key = begin; key < end; key += kLanes) {
    __m256 score = _mm256_load_ps(scores + key);
    if (problem.capped_scale > 0) {
      score = _mm256_mul_ps(tanh_vector(score), _mm256_set1_ps(problem.capped_scale));
      _mm256_store_ps(scores + key, score);
    }
    largest = _mm256_blendv_ps(largest, _mm256_max_ps(score, largest), visible.lanes(key));  // a NaN is passed over
  }
  *maximum = largest_lane(largest);
  const __m256 top = _mm256_set1_ps(*maximum);
  __m256 total = _mm256_setzero_ps();
  for (int key = begin; key < end; key += kLanes) {
    const __m256 weight = exp2_vector(_mm256_sub_ps(_mm256_load_ps(scores + key), top));
    const __m256 seen = _mm256_and_ps(weight, visible.lanes(key));
    total = _mm256_add_ps(total, seen);
    _mm256_store_ps(scores + key, seen);
  }
  *sum = sum_lanes(total);
}

// The elements of a lane, of kDepth neighbouring keys from `key` on, that the segment visits: others may be no number.
template <typename Cache>
__m256i lane_elements(const AttentionSegment& segment, int key) {
  constexpr int kBits = 32 / Cache::kDepth;
  uint32_t bits = 0;
  for (int i = 0; i < Cache::kDepth; ++i) {
    if (key + i >= segment.first_key && key + i < segment.end_key) bits |= (~0u >> (32 - kBits)) << (i * kBits);
  }
  return _mm256_set1_epi32(static_cast<int>(bits));
}

// sums[query][column] += weight of key kWord of a lane * value
template <typename Cache, int kWord, int kQueries, int kColumns>
inline void add_key(const __m256i (&raw)[kColumns], const float* weights, __m256 (&sums)[kQueries][kColumns]) {
  __m256 operands[kColumns];
#pragma GCC unroll 8
  for (int c = 0; c < kColumns; ++c) operands[c] = Cache::template expand<kWord>(raw[c]);
#pragma GCC unroll 4
  for (int q = 0; q < kQueries; ++q) {
    const __m256 weight = _mm256_broadcast_ss(weights + q * kSegment + kWord);
#pragma GCC unroll 8
    for (int c = 0; c < kColumns; ++c) sums[q][c] = _mm256_fmadd_ps(weight, operands[c], sums[q][c]);
  }
}

// weighted[query][d .. d + 8 kColumns] = sum over the segment's keys of weight * value.
template <typename Cache, int kQueries, int kColumns>
void weigh_values(const AttentionProblem& problem, const AttentionSegment& segment, int d, const float* weights,
                  const KeysAhead* ahead, float* weighted) {
  __m256 sums[kQueries][kColumns] = {};
  const int64_t step = int64_t{problem.head_dim} * 4;
  for (int v = segment.first_vector; v < segment.end_vector; ++v) {
    const std::byte* values = segment.values[v] + d * 4;
    for (int key = v * kKeyVector; key < (v + 1) * kKeyVector; key += Cache::kDepth, values += step) {
      if (ahead != nullptr) ahead->request(v, key % kKeyVector / Cache::kDepth);
      const __m256i elements = lane_elements<Cache>(segment, key);
      __m256i raw[kColumns];
#pragma GCC unroll 8
      for (int c = 0; c < kColumns; ++c) raw[c] = _mm256_and_si256(load_raw(values + c * 32), elements);
      add_key<Cache, 0>(raw, weights + key, sums);
      if constexpr (Cache::kDepth == 2) add_key<Cache, 1>(raw, weights + key, sums);
    }
  }
#pragma GCC unroll 4
  for (int q = 0; q < kQueries; ++q) {
#pragma GCC unroll 8
    for (int c = 0; c < kColumns; ++c) _mm256_store_ps(weighted + q * problem.head_dim + d + c * kLanes, sums[q][c]);
  }
}

template <typename Cache, int kQueries>
void weigh_block(const AttentionProblem& problem, const AttentionSegment& segment, const float* weights,
                 const KeysAhead* ahead, float* weighted) {
  constexpr int kColumns = larger(2, kBlockSums / kQueries / 2 * 2);
  int d = 0;
  for (; d + kColumns * kLanes <= problem.head_dim; d += kColumns * kLanes) {
    weigh_values<Cache, kQueries, kColumns>(problem, segment, d, weights, d == 0 ? ahead : nullptr, weighted);
  }
  for (; d < problem.head_dim; d += 2 * kLanes) {
    weigh_values<Cache, kQueries, 2>(problem, segment, d, weights, d == 0 ? ahead : nullptr, weighted);
  }
}

// Scratch: scores [queries, kSegment], then queries [queries, head_dim].
std::size_t scratch_floats(const AttentionProblem& problem, int queries) {
  return std::size_t(queries) * (kSegment + problem.head_dim);
}

void load_queries(const AttentionProblem& problem, const AttentionTile& tile, float* scratch) {
  const int count = tile.num_tokens * problem.group;
  float* to = scratch + count * kSegment;
  const __m256 scale = _mm256_set1_ps(problem.query_scale);
  for (int i = 0; i < count; ++i, to += problem.head_dim) {
    const int64_t offset = (tile.first_token + i / problem.group) * problem.query_token_stride +
                           (tile.kv_head * problem.group + i % problem.group) * problem.query_head_stride;
    for (int d = 0; d < problem.head_dim; d += kLanes) {
      const __m256 loaded = problem.query_type == ElementType::kBFloat16
                                ? load_lanes(static_cast<const BFloat16*>(problem.query) + offset + d)
                                : load_lanes(static_cast<const float*>(problem.query) + offset + d);
      _mm256_storeu_ps(to + d, _mm256_mul_ps(loaded, scale));
    }
  }
}

using ScoreFunction = void (*)(const AttentionProblem&, const AttentionSegment&, const float*, float*);
using WeighFunction = void (*)(const AttentionProblem&, const AttentionSegment&, const float*, const KeysAhead*, float*);

template <typename Cache>
void attend_cached(const AttentionProblem& problem, const AttentionTile& tile, const AttentionSegment& segment,
                   const AttentionSegment& next, float* scratch, const SoftmaxState& state) {
  // By number of queries, less one.
  static constexpr ScoreFunction kScore[kMaxBlock]{score_block<Cache, 1>, score_block<Cache, 2>, score_block<Cache, 3>,
                                                   score_block<Cache, 4>};
  static constexpr WeighFunction kWeigh[kMaxBlock]{weigh_block<Cache, 1>, weigh_block<Cache, 2>, weigh_block<Cache, 3>,
                                                   weigh_block<Cache, 4>};
  const int count = tile.num_tokens * problem.group;
  const KeysAhead ahead(problem, segment, next);
  const float* queries = scratch + count * kSegment;
  for (int q = 0; q < count; q += kMaxBlock) {
    const int block = smaller(count - q, kMaxBlock);
    float* scores = scratch + q * kSegment;
    kScore[block - 1](problem, segment, queries + q * problem.head_dim, scores);
    for (int i = q; i < q + block; ++i) {
      softmax_scores(problem, segment, tile.first_position + i / problem.group, scratch + i * kSegment,
                     state.maximum + i, state.sum + i);
    }
    kWeigh[block - 1](problem, segment, scores, q == 0 ? &ahead : nullptr, state.weighted + q * problem.head_dim);
  }
}

void attend(const AttentionProblem& problem, const AttentionTile& tile, const AttentionSegment& segment,
            const AttentionSegment& next, float* scratch, const SoftmaxState& state) {
  if (problem.cache_type == ElementType::kBFloat16) {
    attend_cached<BFloat16Cache>(problem, tile, segment, next, scratch, state);
  } else {
    attend_cached<Float32Cache>(problem, tile, segment, next, scratch, state);
  }
}

void merge(const AttentionProblem& problem, int queries, const SoftmaxState& into, const SoftmaxState& from) {
  for (int i = 0; i < queries; ++i) {
    const float maximum = into.maximum[i] > from.maximum[i] ? into.maximum[i] : from.maximum[i];
    const __m256 keep = exp2_vector(_mm256_set1_ps(into.maximum[i] - maximum));
    const __m256 add = exp2_vector(_mm256_set1_ps(from.maximum[i] - maximum));
    into.maximum[i] = maximum;
    into.sum[i] = into.sum[i] * _mm256_cvtss_f32(keep) + from.sum[i] * _mm256_cvtss_f32(add);
    for (int d = i * problem.head_dim; d < (i + 1) * problem.head_dim; d += kLanes) {
      const __m256 added = _mm256_mul_ps(_mm256_load_ps(from.weighted + d), add);
      _mm256_store_ps(into.weighted + d, _mm256_fmadd_ps(_mm256_load_ps(into.weighted + d), keep, added));
    }
  }
}

void store_output(const AttentionProblem& problem, const AttentionTile& tile, const SoftmaxState& state) {
  for (int i = 0; i < tile.num_tokens * problem.group; ++i) {
    const int64_t token = tile.first_token + i / problem.group;
    const int64_t head = tile.kv_head * problem.group + i % problem.group;
    const int64_t offset = (token * problem.num_heads + head) * problem.head_dim;
    const __m256 inverse = _mm256_set1_ps(1.0f / state.sum[i]);
    for (int d = 0; d < problem.head_dim; d += kLanes) {
      const __m256 result = _mm256_mul_ps(_mm256_load_ps(state.weighted + i * problem.head_dim + d), inverse);
      if (problem.query_type == ElementType::kBFloat16) {
        store_lanes(static_cast<BFloat16*>(problem.output) + offset + d, result);
      } else {
        store_lanes(static_cast<float*>(problem.output) + offset + d, result);
      }
    }
  }
}

}  // namespace

const AttentionKernel kAvx2Attention{4 * kMaxBlock, scratch_floats, load_queries, attend, merge, store_output};

}  // namespace pelton
