// Paged attention with AVX-512, in fp32 arithmetic. Needs F, BW, DQ and VL.
//
// Scores: 16 keys fill a vector, a block of queries walks up the head dimension. Values: 16 head dimensions fill a
// vector, a block of queries walks up the keys. Each score and each output is one chain of fused multiply-adds in a
// fixed order, so the size of a block changes nothing but speed.
#include <array>
#include <utility>

#include "attention_avx512.h"

namespace pelton {
namespace {

constexpr int kCacheLine = 64;
constexpr int kMaxBlock = 12;  // queries of a block: 12 x 2 accumulators leave room for the operands

int smaller(int a, int b) { return a < b ? a : b; }

// Two vectors of head dimensions: for bf16 the even and the odd ones of 32, for fp32 the lower and the upper half.
struct DimensionPair {
  __m512 first, second;
};

struct BFloat16Cache {
  static constexpr int kDimsPerLoad = 2;

  // 16 keys at two consecutive head dimensions.
  static void load_keys(const std::byte* keys, __m512 out[2]) {
    const __m512i raw = _mm512_loadu_si512(keys);
    out[0] = even_bfloat16(raw);
    out[1] = odd_bfloat16(raw);
  }

  static DimensionPair load_values(const std::byte* values, int num_dims) {
    const __mmask32 lanes = num_dims >= 32 ? 0xffffffffu : (1u << num_dims) - 1;
    const __m512i raw = _mm512_maskz_loadu_epi16(lanes, values);
    return {even_bfloat16(raw), odd_bfloat16(raw)};
  }

  static constexpr int kBytes = 2;
};

struct Float32Cache {
  static constexpr int kDimsPerLoad = 1;

  static void load_keys(const std::byte* keys, __m512 out[1]) { out[0] = _mm512_loadu_ps(keys); }

  static DimensionPair load_values(const std::byte* values, int num_dims) {
    const auto* floats = reinterpret_cast<const float*>(values);
    const __mmask16 upper = num_dims >= 32 ? 0xffff : 0;
    return {_mm512_loadu_ps(floats), _mm512_maskz_loadu_ps(upper, floats + kLanes)};
  }

  static constexpr int kBytes = 4;
};

// scores[query][key] of `Queries` queries and `Vectors` vectors of keys from segment vector `first`.
template <typename Cache, int Queries, int Vectors>
void score_vectors(const AttentionProblem& problem, const AttentionSegment& segment, int first, const float* queries,
                   float* scores) {
  constexpr int kDims = Cache::kDimsPerLoad;
  const std::byte* keys[Vectors];
  const std::byte* next_keys[Vectors];  // to prefetch, as the values are
  const std::byte* values[Vectors];
  for (int v = 0; v < Vectors; ++v) {
    keys[v] = segment.keys[visited(segment, first + v)];
    next_keys[v] = segment.keys[visited(segment, first + v + Vectors)];
    values[v] = segment.values[visited(segment, first + v)];
  }
  __m512 sums[Queries][Vectors];
  for (auto& row : sums) {
    for (auto& sum : row) sum = _mm512_setzero_ps();
  }
  const std::size_t step = std::size_t(problem.page_size) * 4;
  for (int d = 0; d < problem.head_dim; d += kDims) {
    __m512 loaded[Vectors][kDims];
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) {
      Cache::load_keys(keys[v], loaded[v]);
      _mm_prefetch(next_keys[v], _MM_HINT_T0);
      _mm_prefetch(values[v], _MM_HINT_T1);
      keys[v] += step;
      next_keys[v] += step;
      values[v] += kCacheLine;
    }
#pragma GCC unroll 12
    for (int q = 0; q < Queries; ++q) {
#pragma GCC unroll 2
      for (int i = 0; i < kDims; ++i) {
        const __m512 query = _mm512_set1_ps(queries[q * problem.head_dim + d + i]);
#pragma GCC unroll 4
        for (int v = 0; v < Vectors; ++v) sums[q][v] = _mm512_fmadd_ps(query, loaded[v][i], sums[q][v]);
      }
    }
  }
#pragma GCC unroll 12
  for (int q = 0; q < Queries; ++q) {
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) _mm512_store_ps(scores + q * kSegment + (first + v) * kLanes, sums[q][v]);
  }
}

// weighted[query][d .. d + 32 Pairs] = sum over the segment's keys of weight * value.
template <typename Cache, int Queries, int Pairs>
void weigh_values(const AttentionProblem& problem, const AttentionSegment& segment, int d, const float* weights,
                  float* weighted) {
  DimensionPair sums[Queries][Pairs];
  for (auto& row : sums) {
    for (auto& sum : row) sum = {_mm512_setzero_ps(), _mm512_setzero_ps()};
  }
  for (int v = segment.first_vector; v < segment.end_vector; ++v) {
    const int begin = v == segment.first_vector ? segment.first_key % kKeyVector : 0;
    const int end = smaller(segment.end_key - v * kKeyVector, kKeyVector);
    const std::byte* values = segment.values[v] + (std::size_t(begin) * problem.head_dim + d) * Cache::kBytes;
    for (int key = begin; key < end; ++key) {
      DimensionPair loaded[Pairs];
#pragma GCC unroll 2
      for (int p = 0; p < Pairs; ++p) {
        loaded[p] = Cache::load_values(values + p * kPaddedDims * Cache::kBytes, problem.head_dim - d - p * kPaddedDims);
      }
      values += problem.head_dim * Cache::kBytes;
#pragma GCC unroll 12
      for (int q = 0; q < Queries; ++q) {
        const __m512 weight = _mm512_set1_ps(weights[q * kSegment + v * kKeyVector + key]);
#pragma GCC unroll 2
        for (int p = 0; p < Pairs; ++p) {
          sums[q][p].first = _mm512_fmadd_ps(weight, loaded[p].first, sums[q][p].first);
          sums[q][p].second = _mm512_fmadd_ps(weight, loaded[p].second, sums[q][p].second);
        }
      }
    }
  }
#pragma GCC unroll 12
  for (int q = 0; q < Queries; ++q) {
#pragma GCC unroll 2
    for (int p = 0; p < Pairs; ++p) {
      float* out = weighted + q * problem.padded_head_dim + d + p * kPaddedDims;
      _mm512_storeu_ps(out, sums[q][p].first);
      _mm512_storeu_ps(out + kLanes, sums[q][p].second);
    }
  }
}

// All scores of `Queries` queries over the segment. Few queries take more keys at a time, to keep both units busy.
template <typename Cache, int Queries>
void score_block(const AttentionProblem& problem, const AttentionSegment& segment, const float* queries,
                 float* scores) {
  constexpr int kVectors = Queries <= 6 ? 4 : 2;
  for (int v = segment.first_vector / kVectors * kVectors; v < segment.end_vector; v += kVectors) {
    score_vectors<Cache, Queries, kVectors>(problem, segment, v, queries, scores);
  }
}

template <typename Cache, int Queries>
void weigh_block(const AttentionProblem& problem, const AttentionSegment& segment, const float* weights,
                 float* weighted) {
  constexpr int kPairs = Queries <= 6 ? 2 : 1;
  int d = 0;
  for (; d + kPairs * kPaddedDims <= problem.padded_head_dim; d += kPairs * kPaddedDims) {
    weigh_values<Cache, Queries, kPairs>(problem, segment, d, weights, weighted);
  }
  if (d < problem.padded_head_dim) weigh_values<Cache, Queries, 1>(problem, segment, d, weights, weighted);
}

using BlockFunction = void (*)(const AttentionProblem&, const AttentionSegment&, const float*, float*);

template <typename Cache, std::size_t... Index>
constexpr std::array<BlockFunction, kMaxBlock> score_functions(std::index_sequence<Index...>) {
  return {score_block<Cache, int(Index) + 1>...};
}

template <typename Cache, std::size_t... Index>
constexpr std::array<BlockFunction, kMaxBlock> weigh_functions(std::index_sequence<Index...>) {
  return {weigh_block<Cache, int(Index) + 1>...};
}

template <typename Cache>
constexpr auto kScoreFunctions = score_functions<Cache>(std::make_index_sequence<kMaxBlock>());
template <typename Cache>
constexpr auto kWeighFunctions = weigh_functions<Cache>(std::make_index_sequence<kMaxBlock>());

// Scratch: scores [queries, kSegment], then queries [queries, head_dim].
std::size_t scratch_floats(const AttentionProblem& problem, int queries) {
  return std::size_t(queries) * (kSegment + problem.head_dim);
}

void load_queries(const AttentionProblem& problem, const AttentionTile& tile, float* scratch) {
  const int count = tile.num_tokens * problem.group;
  float* queries = scratch + count * kSegment;
  const __m512 scale = _mm512_set1_ps(problem.query_scale);
  for (int i = 0; i < count; ++i) {
    const int64_t offset = (tile.first_token + i / problem.group) * problem.query_token_stride +
                           (tile.kv_head * problem.group + i % problem.group) * problem.query_head_stride;
    for (int d = 0; d < problem.head_dim; d += kLanes) {
      __m512 loaded;
      if (problem.query_type == ElementType::kBFloat16) {
        loaded = load_lanes(static_cast<const BFloat16*>(problem.query) + offset + d);
      } else {
        loaded = load_lanes(static_cast<const float*>(problem.query) + offset + d);
      }
      _mm512_storeu_ps(queries + i * problem.head_dim + d, _mm512_mul_ps(loaded, scale));
    }
  }
}

template <typename Cache>
void attend_cached(const AttentionProblem& problem, const AttentionTile& tile, const AttentionSegment& segment,
                   float* scratch, const SoftmaxState& state) {
  const int count = tile.num_tokens * problem.group;
  float* scores = scratch;
  const float* queries = scratch + count * kSegment;
  for (int q = 0; q < count; q += kMaxBlock) {
    const int block = smaller(count - q, kMaxBlock);
    kScoreFunctions<Cache>[block - 1](problem, segment, queries + q * problem.head_dim, scores + q * kSegment);
    for (int i = q; i < q + block; ++i) {
      softmax_scores(problem, segment, tile.first_position + i / problem.group, 1.0f,
                     scores + i * kSegment, state.maximum + i, state.sum + i);
    }
    kWeighFunctions<Cache>[block - 1](problem, segment, scores + q * kSegment,
                                      state.weighted + q * problem.padded_head_dim);
  }
}

void attend(const AttentionProblem& problem, const AttentionTile& tile, const AttentionSegment& segment,
            float* scratch, const SoftmaxState& state) {
  if (problem.cache_type == ElementType::kBFloat16) {
    attend_cached<BFloat16Cache>(problem, tile, segment, scratch, state);
  } else {
    attend_cached<Float32Cache>(problem, tile, segment, scratch, state);
  }
}

void store(const AttentionProblem& problem, const AttentionTile& tile, const SoftmaxState& state) {
  const bool pairs = problem.cache_type == ElementType::kBFloat16;
  store_avx512(problem, tile, state, pairs ? DimensionOrder::kEvenThenOdd : DimensionOrder::kNatural);
}

void store_vector(const AttentionProblem& problem, int64_t offset, __m512 values) {
  if (problem.query_type == ElementType::kBFloat16) {
    store_lanes(static_cast<BFloat16*>(problem.output) + offset, values);
  } else {
    store_lanes(static_cast<float*>(problem.output) + offset, values);
  }
}

DimensionPair in_natural_order(DimensionPair pair, DimensionOrder order) {
  if (order == DimensionOrder::kNatural) return pair;
  const bool fours = order == DimensionOrder::kFoursInTurn;
  const __m512i low = fours ? _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23)
                            : _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
  return {_mm512_permutex2var_ps(pair.first, low, pair.second), _mm512_permutex2var_ps(pair.first, high, pair.second)};
}

}  // namespace

void merge_avx512(const AttentionProblem& problem, int queries, const SoftmaxState& into, const SoftmaxState& from) {
  for (int i = 0; i < queries; ++i) {
    const float maximum = into.maximum[i] > from.maximum[i] ? into.maximum[i] : from.maximum[i];
    const __m512 keep = exp2_vector(_mm512_set1_ps(into.maximum[i] - maximum));
    const __m512 add = exp2_vector(_mm512_set1_ps(from.maximum[i] - maximum));
    into.maximum[i] = maximum;
    into.sum[i] = into.sum[i] * _mm512_cvtss_f32(keep) + from.sum[i] * _mm512_cvtss_f32(add);
    for (int d = i * problem.padded_head_dim; d < (i + 1) * problem.padded_head_dim; d += kLanes) {
      const __m512 added = _mm512_mul_ps(_mm512_load_ps(from.weighted + d), add);
      _mm512_store_ps(into.weighted + d, _mm512_fmadd_ps(_mm512_load_ps(into.weighted + d), keep, added));
    }
  }
}

void store_avx512(const AttentionProblem& problem, const AttentionTile& tile, const SoftmaxState& state,
                  DimensionOrder order) {
  for (int i = 0; i < tile.num_tokens * problem.group; ++i) {
    const int64_t token = tile.first_token + i / problem.group;
    const int64_t head = tile.kv_head * problem.group + i % problem.group;
    const int64_t offset = (token * problem.num_heads + head) * problem.head_dim;
    const __m512 inverse = _mm512_set1_ps(1.0f / state.sum[i]);
    for (int d = 0; d < problem.head_dim; d += kPaddedDims) {
      const float* from = state.weighted + i * problem.padded_head_dim + d;
      const DimensionPair pair = in_natural_order({_mm512_load_ps(from), _mm512_load_ps(from + kLanes)}, order);
      store_vector(problem, offset + d, _mm512_mul_ps(pair.first, inverse));
      if (d + kLanes < problem.head_dim) store_vector(problem, offset + d + kLanes, _mm512_mul_ps(pair.second, inverse));
    }
  }
}

const AttentionKernel kAvx512Attention{2 * kMaxBlock, scratch_floats, load_queries, attend, merge_avx512, store};

}  // namespace pelton
