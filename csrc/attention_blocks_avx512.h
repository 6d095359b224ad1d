// Attention of one segment with AVX-512, whatever the arithmetic. Include from files compiled for AVX-512 only.
//
// A lane of 32 bits holds x neighbours of the cache: x head dimensions of one of 16 keys, or x keys of one of 16 head
// dimensions. An Arithmetic says how 16 lanes become kWords operands, and how an operand is multiplied by a word of 32
// bits of a query or of its weights. A block of queries walks up the head dimension or the keys; each score and each
// output is one chain of sums in a fixed order, so the size of a block changes nothing but speed.
//
//   static constexpr int kDepth;  // x
//   static constexpr int kWords;  // operands of a vector of the cache, and words of a query to every x dimensions
//   using Sum;
//   static Sum zero();
//   static void expand(__m512i raw, __m512i operands[kWords]);
//   static Sum dot(Sum sum, __m512i operand, __m512i word);
//   static __m512 to_float(Sum sum);
//   // One query becomes words [head_dim / kDepth * kWords]. Returns what its scores have still to be multiplied by.
//   static float load_query(const AttentionProblem& problem, int64_t offset, void* words);
//   // The weights of one query, floats [kSegment], become words [kSegment / kDepth * kWords] in the same memory, with the
//   // scales of the values where there are some. Returns what the sums over them have still to be multiplied by.
//   static float pack_weights(const AttentionSegment& segment, float* weights);
#pragma once
#include <array>
#include <cstring>
#include <utility>

#include "attention_avx512.h"

namespace pelton {
// Internal linkage: each file has its own instances, compiled for its instruction sets.
namespace {

constexpr int kMaxBlock = 12;  // queries of a block: 12 x 2 sums leave room for the operands

inline int smaller(int a, int b) { return a < b ? a : b; }

inline __m512i broadcast_word(const void* words, int64_t index) {
  int32_t word;
  std::memcpy(&word, static_cast<const std::byte*>(words) + index * 4, sizeof word);
  return _mm512_set1_epi32(word);
}

// scores[query][key] of `Queries` queries and `Vectors` vectors of keys from segment vector `first`. Each step asks for
// a line of the keys of the next block and for one of the values.
template <typename Arithmetic, int Queries, int Vectors>
void score_vectors(const AttentionProblem& problem, const AttentionSegment& segment, int first,
                   const std::byte* queries, float* scores) {
  constexpr int kWords = Arithmetic::kWords;
  const std::byte* keys[Vectors];
  const std::byte* next_keys[Vectors];
  const std::byte* values[Vectors];
  for (int v = 0; v < Vectors; ++v) {
    keys[v] = segment.keys[visited(segment, first + v)];
    next_keys[v] = segment.keys[visited(segment, first + v + Vectors)];
    values[v] = segment.values[visited(segment, first + v)];
  }
  typename Arithmetic::Sum sums[Queries][Vectors];
  for (auto& row : sums) {
    for (auto& sum : row) sum = Arithmetic::zero();
  }
  const std::size_t step = std::size_t(problem.page_size) * 4;
  const int num_steps = problem.head_dim / Arithmetic::kDepth;
  for (int i = 0; i < num_steps; ++i) {
    __m512i operands[Vectors][kWords];
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) {
      Arithmetic::expand(_mm512_loadu_si512(keys[v]), operands[v]);
      _mm_prefetch(reinterpret_cast<const char*>(next_keys[v]), _MM_HINT_T0);
      prefetch_far(values[v]);
      keys[v] += step;
      next_keys[v] += step;
      values[v] += kCacheLine;
    }
#pragma GCC unroll 12
    for (int q = 0; q < Queries; ++q) {
#pragma GCC unroll 4
      for (int w = 0; w < kWords; ++w) {
        const __m512i query = broadcast_word(queries, (q * num_steps + i) * kWords + w);
#pragma GCC unroll 4
        for (int v = 0; v < Vectors; ++v) sums[q][v] = Arithmetic::dot(sums[q][v], operands[v][w], query);
      }
    }
  }
#pragma GCC unroll 12
  for (int q = 0; q < Queries; ++q) {
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) {
      _mm512_store_ps(scores + q * kSegment + (first + v) * kLanes, Arithmetic::to_float(sums[q][v]));
    }
  }
}

// The elements of a lane, of kDepth neighbouring keys, that lie in [begin, end); `key` is the first of the neighbours.
template <typename Arithmetic>
__m512i lane_elements(int key, int begin, int end) {
  constexpr int kBits = 32 / Arithmetic::kDepth;
  uint32_t bits = 0;
  for (int i = 0; i < Arithmetic::kDepth; ++i) {
    if (key + i >= begin && key + i < end) bits |= (0xffffffffu >> (32 - kBits)) << (i * kBits);
  }
  return _mm512_set1_epi32(static_cast<int>(bits));
}

// weighted[query][d .. d + 16 Columns] = factor of the query * sum over the segment's keys of weight * value.
template <typename Arithmetic, int Queries, int Columns>
void weigh_values(const AttentionProblem& problem, const AttentionSegment& segment, int d, const float* weights,
                  const float* factors, const KeysAhead* ahead, float* weighted) {
  constexpr int kWords = Arithmetic::kWords;
  constexpr int kGroups = kKeyVector / Arithmetic::kDepth;  // of keys in a vector of keys
  constexpr int kSegmentWords = kSegment / Arithmetic::kDepth * kWords;
  typename Arithmetic::Sum sums[Queries][Columns];
  for (auto& row : sums) {
    for (auto& sum : row) sum = Arithmetic::zero();
  }
  const auto add_group = [&](const std::byte* values, int word, auto&& select) {
    __m512i operands[Columns][kWords];
#pragma GCC unroll 4
    for (int c = 0; c < Columns; ++c) {
      Arithmetic::expand(select(_mm512_loadu_si512(values + c * kCacheLine)), operands[c]);
    }
#pragma GCC unroll 12
    for (int q = 0; q < Queries; ++q) {
#pragma GCC unroll 4
      for (int w = 0; w < kWords; ++w) {
        // The words of a query take the place of its scores.
        const __m512i weight = broadcast_word(weights, q * kSegment + word + w);
#pragma GCC unroll 4
        for (int c = 0; c < Columns; ++c) sums[q][c] = Arithmetic::dot(sums[q][c], operands[c][w], weight);
      }
    }
  };
  static_assert(kSegmentWords <= kSegment);
  const std::size_t step = std::size_t(problem.head_dim) * 4;
  for (int v = segment.first_vector; v < segment.end_vector; ++v) {
    const std::byte* values = segment.values[v] + d * 4;
    const int key = v * kKeyVector;
    const bool whole = key >= segment.first_key && key + kKeyVector <= segment.end_key;
    for (int group = 0; group < kGroups; ++group, values += step) {
      const int word = (v * kGroups + group) * kWords;
      if (ahead != nullptr) ahead->request(v, group);
      if (whole) {
        add_group(values, word, [](__m512i raw) { return raw; });
      } else {  // what lies outside may be no number
        const __m512i elements =
            lane_elements<Arithmetic>(key + group * Arithmetic::kDepth, segment.first_key, segment.end_key);
        add_group(values, word, [&](__m512i raw) { return _mm512_and_si512(raw, elements); });
      }
    }
  }
#pragma GCC unroll 12
  for (int q = 0; q < Queries; ++q) {
#pragma GCC unroll 4
    for (int c = 0; c < Columns; ++c) {
      const __m512 sum = _mm512_mul_ps(Arithmetic::to_float(sums[q][c]), _mm512_set1_ps(factors[q]));
      _mm512_store_ps(weighted + q * problem.head_dim + d + c * kLanes, sum);
    }
  }
}

// All scores of `Queries` queries over the segment. Few queries take more keys at a time, to keep both units busy.
template <typename Arithmetic, int Queries>
void score_block(const AttentionProblem& problem, const AttentionSegment& segment, const std::byte* queries,
                 float* scores) {
  constexpr int kVectors = Queries <= 6 ? 4 : 2;
  for (int v = segment.first_vector / kVectors * kVectors; v < segment.end_vector; v += kVectors) {
    score_vectors<Arithmetic, Queries, kVectors>(problem, segment, v, queries, scores);
  }
}

template <typename Arithmetic, int Queries>
void weigh_block(const AttentionProblem& problem, const AttentionSegment& segment, const float* weights,
                 const float* factors, const KeysAhead* ahead, float* weighted) {
  constexpr int kColumns = Queries <= 6 ? 4 : 2;
  int d = 0;
  for (; d + kColumns * kLanes <= problem.head_dim; d += kColumns * kLanes) {
    weigh_values<Arithmetic, Queries, kColumns>(problem, segment, d, weights, factors, d == 0 ? ahead : nullptr,
                                                weighted);
  }
  for (; d < problem.head_dim; d += kLanes) {
    weigh_values<Arithmetic, Queries, 1>(problem, segment, d, weights, factors, d == 0 ? ahead : nullptr, weighted);
  }
}

using ScoreFunction = void (*)(const AttentionProblem&, const AttentionSegment&, const std::byte*, float*);
using WeighFunction = void (*)(const AttentionProblem&, const AttentionSegment&, const float*, const float*,
                               const KeysAhead*, float*);

template <typename Arithmetic, std::size_t... Index>
constexpr std::array<ScoreFunction, kMaxBlock> score_functions(std::index_sequence<Index...>) {
  return {score_block<Arithmetic, int(Index) + 1>...};
}

template <typename Arithmetic, std::size_t... Index>
constexpr std::array<WeighFunction, kMaxBlock> weigh_functions(std::index_sequence<Index...>) {
  return {weigh_block<Arithmetic, int(Index) + 1>...};
}

template <typename Arithmetic>
constexpr auto kScoreFunctions = score_functions<Arithmetic>(std::make_index_sequence<kMaxBlock>());
template <typename Arithmetic>
constexpr auto kWeighFunctions = weigh_functions<Arithmetic>(std::make_index_sequence<kMaxBlock>());

template <typename Arithmetic>
std::size_t query_bytes(const AttentionProblem& problem) {
  return std::size_t(problem.head_dim / Arithmetic::kDepth) * Arithmetic::kWords * 4;
}

// Scratch: scores [queries, kSegment], the words of the queries, then what their scores have still to be multiplied by.
template <typename Arithmetic>
std::size_t block_scratch_floats(const AttentionProblem& problem, int queries) {
  return std::size_t(queries) * (kSegment + query_bytes<Arithmetic>(problem) / sizeof(float) + 1);
}

template <typename Arithmetic>
struct BlockScratch {
  BlockScratch(const AttentionProblem& problem, int queries, float* memory)
      : scores(memory),
        words(reinterpret_cast<std::byte*>(memory + queries * kSegment)),
        scales(reinterpret_cast<float*>(words + queries * query_bytes<Arithmetic>(problem))) {}

  float* scores;
  std::byte* words;
  float* scales;
};

template <typename Arithmetic>
void load_block_queries(const AttentionProblem& problem, const AttentionTile& tile, float* memory) {
  const int count = tile.num_tokens * problem.group;
  const BlockScratch<Arithmetic> scratch(problem, count, memory);
  for (int i = 0; i < count; ++i) {
    const int64_t offset = (tile.first_token + i / problem.group) * problem.query_token_stride +
                           (tile.kv_head * problem.group + i % problem.group) * problem.query_head_stride;
    scratch.scales[i] = Arithmetic::load_query(problem, offset, scratch.words + i * query_bytes<Arithmetic>(problem));
  }
}

template <typename Arithmetic>
void attend_blocks(const AttentionProblem& problem, const AttentionTile& tile, const AttentionSegment& segment,
                   const AttentionSegment& next, float* memory, const SoftmaxState& state) {
  const int count = tile.num_tokens * problem.group;
  const BlockScratch<Arithmetic> scratch(problem, count, memory);
  const KeysAhead ahead(problem, segment, next);
  for (int first = 0; first < count; first += kMaxBlock) {
    const int block = smaller(count - first, kMaxBlock);
    float* scores = scratch.scores + first * kSegment;
    kScoreFunctions<Arithmetic>[block - 1](problem, segment, scratch.words + first * query_bytes<Arithmetic>(problem),
                                           scores);
    float factors[kMaxBlock];
    for (int q = 0; q < block; ++q) {
      const int i = first + q;
      softmax_scores(problem, segment, tile.first_position + i / problem.group, scratch.scales[i],
                     scores + q * kSegment, state.maximum + i, state.sum + i);
      factors[q] = Arithmetic::pack_weights(segment, scores + q * kSegment);
    }
    kWeighFunctions<Arithmetic>[block - 1](problem, segment, scores, factors, first == 0 ? &ahead : nullptr,
                                           state.weighted + first * problem.head_dim);
  }
}

}  // namespace
}  // namespace pelton
