// Paged attention with AMX tiles: bf16 queries, keys and weights, fp32 sums. Needs AMX-BF16 and AVX-512 with BF16.
//
// A page holds its keys as a tile wants them. Values are copied first, since a tile takes those of two pages. Every row
// of a tile is its own chain of sums in a fixed order over head dimensions or keys, so a query's bits do not depend on
// the rows beside it. Weights are rounded to bf16, as in FlashAttention-2 (arXiv 2307.08691).
#include <cstring>

#include "attention_bf16_avx512.h"
#include "tiles_amx.h"

namespace pelton {
namespace {

constexpr int kTileRows = 16;
constexpr int kBlockQueries = 2 * kTileRows;
constexpr int kStepDims = 32;  // head dimensions of a tile of queries or keys
constexpr int kStepKeys = 32;  // keys of a tile of weights or values
constexpr int kStepVectors = kStepKeys / kKeyVector;
constexpr int kElementBytes = 2;
constexpr int kCopyDims = 32;  // head dimensions of values that are copied at a time
constexpr int64_t kPairBytes = 2 * kCopyDims * kElementBytes;  // two keys of them

// Tiles 0 to 3 hold sums: top left, top right, bottom left, bottom right. 4 and 5 hold queries or weights (top, bottom),
// 6 and 7 keys or values (left, right). Up to 16 queries have no bottom: there 2 and 3 hold further columns, 5 values.
void configure(int queries) {
  const bool with_bottom = queries > kTileRows;
  const int top = with_bottom ? kTileRows : queries;
  const int bottom = with_bottom ? queries - kTileRows : queries;
  TileConfig config;
  for (int tile = 0; tile < 8; ++tile) config.row_bytes[tile] = 64;
  config.rows[0] = config.rows[1] = config.rows[4] = static_cast<uint8_t>(top);
  config.rows[2] = config.rows[3] = static_cast<uint8_t>(bottom);
  config.rows[5] = static_cast<uint8_t>(with_bottom ? bottom : kTileRows);
  config.rows[6] = config.rows[7] = kTileRows;
  publish();
  _tile_loadconfig(&config);
}

// One addend of a product: rows x 32 of bf16 against 32 x 32. Strides in bytes.
struct Step {
  const void* top;
  const void* bottom;  // null where 16 rows suffice
  int64_t row_stride;
  const void* left;
  const void* right;
  int64_t column_stride;
};

void clear_sums() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

inline void add_product(const Step& step) {
  _tile_loadd(6, step.left, step.column_stride);
  _tile_loadd(4, step.top, step.row_stride);
  _tile_dpbf16ps(0, 4, 6);
  _tile_loadd(7, step.right, step.column_stride);
  _tile_dpbf16ps(1, 4, 7);
  if (step.bottom == nullptr) return;
  _tile_loadd(5, step.bottom, step.row_stride);
  _tile_dpbf16ps(2, 5, 6);
  _tile_dpbf16ps(3, 5, 7);
}

// 32 columns of the sums, to rows that are `width` floats apart.
void store_sums(float* to, int64_t width, bool with_bottom) {
  const int64_t stride = width * static_cast<int64_t>(sizeof(float));
  _tile_stored(0, to, stride);
  _tile_stored(1, to + kLanes, stride);
  if (!with_bottom) return;
  _tile_stored(2, to + kTileRows * width, stride);
  _tile_stored(3, to + kTileRows * width + kLanes, stride);
}

struct Scratch {
  float* scores;      // [queries, kSegment]
  BFloat16* weights;  // [queries, kSegment]
  BFloat16* queries;  // [queries, head_dim]
  BFloat16* values;   // two times 32 head dimensions of a segment: [key pair, 32 dimensions, 2 keys]
};

std::size_t scratch_floats(const AttentionProblem& problem, int queries) {
  return std::size_t(queries) * (kSegment + kSegment / 2 + problem.head_dim / 2) + kSegment * kCopyDims;
}

Scratch partition(const AttentionProblem& problem, int queries, float* scratch) {
  float* weights = scratch + queries * kSegment;
  float* packed_queries = weights + queries * kSegment / 2;
  float* values = packed_queries + queries * problem.head_dim / 2;
  return {scratch, reinterpret_cast<BFloat16*>(weights), reinterpret_cast<BFloat16*>(packed_queries),
          reinterpret_cast<BFloat16*>(values)};
}

void load_queries(const AttentionProblem& problem, const AttentionTile& tile, float* scratch) {
  const int count = tile.num_tokens * problem.group;
  BFloat16* queries = partition(problem, count, scratch).queries;
  for (int i = 0; i < count; ++i) {
    const int64_t offset = (tile.first_token + i / problem.group) * problem.query_token_stride +
                           (tile.kv_head * problem.group + i % problem.group) * problem.query_head_stride;
    std::memcpy(queries + i * problem.head_dim, static_cast<const BFloat16*>(problem.query) + offset,
                std::size_t(problem.head_dim) * kElementBytes);
  }
}

// With few queries memory sets the pace: keys are asked for some vectors ahead, values while their keys are multiplied.
constexpr int kAheadVectors = 4;

[[gnu::always_inline]] inline void prefetch_keys(const AttentionProblem& problem, const AttentionSegment& segment,
                                                 int vector) {
  const std::size_t stride = std::size_t(problem.page_size) * 4;
  const std::byte* keys = segment.keys[visited(segment, vector)];
  for (int d = 0; d < problem.head_dim / 2; ++d) prefetch_far(keys + d * stride);
}

[[gnu::always_inline]] inline void prefetch_values(const AttentionProblem& problem, const AttentionSegment& segment,
                                                   int vector) {
  const int bytes = kKeyVector * problem.head_dim * kElementBytes;
  const std::byte* values = segment.values[visited(segment, vector)];
  for (int i = 0; i < bytes; i += kCacheLine) prefetch_far(values + i);
}

// scores of one block of queries, over the segment's key vectors.
void score_block(const AttentionProblem& problem, const AttentionSegment& segment, const BFloat16* queries, int count,
                 float* scores) {
  const int64_t stride = int64_t{problem.page_size} * 4;
  const bool with_bottom = count > kTileRows;
  for (int v = segment.first_vector / kStepVectors * kStepVectors; v < segment.end_vector; v += kStepVectors) {
    const std::byte* left = segment.keys[visited(segment, v)];
    const std::byte* right = segment.keys[visited(segment, v + 1)];
    if (!with_bottom) {
      prefetch_keys(problem, segment, v + kAheadVectors);
      prefetch_keys(problem, segment, v + kAheadVectors + 1);
      prefetch_values(problem, segment, v);
      prefetch_values(problem, segment, v + 1);
    }
    clear_sums();
    for (int d = 0; d < problem.head_dim; d += kStepDims) {
      const BFloat16* bottom = with_bottom ? queries + kTileRows * problem.head_dim + d : nullptr;
      const int64_t keys = d / 2 * stride;
      add_product({queries + d, bottom, problem.head_dim * kElementBytes, left + keys, right + keys, stride});
    }
    store_sums(scores + v * kLanes, kSegment, with_bottom);
  }
}

void softmax_block(const AttentionProblem& problem, const AttentionTile& tile, const AttentionSegment& segment,
                   int first, int count, const Scratch& scratch, const SoftmaxState& state) {
  for (int i = first; i < first + count; ++i) {
    float* scores = scratch.scores + i * kSegment;
    softmax_scores(problem, segment, tile.first_position + i / problem.group, problem.query_scale, scores,
                   state.maximum + i, state.sum + i);
    round_weights(segment, scores, scratch.weights + i * kSegment);
  }
}

// 32 head dimensions of 16 keys, two keys side by side; zeros for the keys outside [begin, end).
void copy_vector(const std::byte* values, std::size_t pair_bytes, int begin, int end, BFloat16* to) {
  const bool whole = begin <= 0 && end >= kKeyVector;
#pragma GCC unroll 8
  for (int key = 0; key < kKeyVector; key += 2, values += pair_bytes, to += 2 * kCopyDims) {
    __m512i left = _mm512_loadu_si512(values), right = _mm512_loadu_si512(values + kCacheLine);
    if (!whole) {
      const bool has_even = key >= begin && key < end, has_odd = key + 1 >= begin && key + 1 < end;
      const uint32_t bits = (has_even ? 0xffffu : 0u) | (has_odd ? 0xffff0000u : 0u);
      const __m512i inside = _mm512_set1_epi32(static_cast<int>(bits));
      left = _mm512_and_si512(left, inside);
      right = _mm512_and_si512(right, inside);
    }
    _mm512_store_si512(to, left);
    _mm512_store_si512(to + kCopyDims, right);
  }
}

// Head dimensions d to d + 32 of the segment's values.
void copy_values(const AttentionProblem& problem, const AttentionSegment& segment, int d, const KeysAhead* ahead,
                 BFloat16* to) {
  const std::size_t pair_bytes = std::size_t(problem.head_dim) * 2 * kElementBytes;
  const int end = (segment.end_vector + kStepVectors - 1) / kStepVectors * kStepVectors;
  for (int v = segment.first_vector / kStepVectors * kStepVectors; v < end; ++v) {
    const int before = v * kKeyVector;
    copy_vector(segment.values[visited(segment, v)] + d * 2 * kElementBytes, pair_bytes, segment.first_key - before,
                segment.end_key - before, to + before * kCopyDims);
    if (ahead == nullptr || v != visited(segment, v)) continue;
    for (int group = 0; group < kKeyVector / 2; ++group) ahead->request(v, group);
  }
}

// weighted[query][0 .. 32] of one block, from 32 copied head dimensions.
void weigh_32(const AttentionProblem& problem, const AttentionSegment& segment, const BFloat16* values,
              const BFloat16* weights, int count, float* weighted) {
  const bool with_bottom = count > kTileRows;
  clear_sums();
  for (int key = segment.first_key / kStepKeys * kStepKeys; key < segment.end_key; key += kStepKeys) {
    const BFloat16* bottom = with_bottom ? weights + kTileRows * kSegment + key : nullptr;
    const BFloat16* left = values + key * kCopyDims;
    add_product({weights + key, bottom, kSegment * kElementBytes, left, left + kCopyDims, kPairBytes});
  }
  store_sums(weighted, problem.head_dim, with_bottom);
}

// weighted[query][0 .. 64] of up to 16 queries: four chains of sums, since one alone waits for itself.
void weigh_64(const AttentionProblem& problem, const AttentionSegment& segment, const BFloat16* values,
              const BFloat16* weights, float* weighted) {
  clear_sums();
  for (int key = segment.first_key / kStepKeys * kStepKeys; key < segment.end_key; key += kStepKeys) {
    const BFloat16* first = values + key * kCopyDims;
    const BFloat16* second = first + kSegment * kCopyDims;
    _tile_loadd(4, weights + key, kSegment * kElementBytes);
    _tile_loadd(6, first, kPairBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, first + kCopyDims, kPairBytes);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, second, kPairBytes);
    _tile_dpbf16ps(2, 4, 5);
    _tile_loadd(6, second + kCopyDims, kPairBytes);
    _tile_dpbf16ps(3, 4, 6);
  }
  const int64_t stride = problem.head_dim * static_cast<int64_t>(sizeof(float));
  _tile_stored(0, weighted, stride);
  _tile_stored(1, weighted + kLanes, stride);
  _tile_stored(2, weighted + 2 * kLanes, stride);
  _tile_stored(3, weighted + 3 * kLanes, stride);
}

int block_size(int count, int first) { return count - first < kBlockQueries ? count - first : kBlockQueries; }

void weigh(const AttentionProblem& problem, const AttentionSegment& segment, int count, const KeysAhead& ahead,
           const Scratch& scratch, float* weighted) {
  int d = 0;
  for (; count <= kTileRows && d + 2 * kCopyDims <= problem.head_dim; d += 2 * kCopyDims) {
    copy_values(problem, segment, d, d == 0 ? &ahead : nullptr, scratch.values);
    copy_values(problem, segment, d + kCopyDims, nullptr, scratch.values + kSegment * kCopyDims);
    publish();
    weigh_64(problem, segment, scratch.values, scratch.weights, weighted + d);
  }
  for (; d < problem.head_dim; d += kCopyDims) {
    copy_values(problem, segment, d, d == 0 ? &ahead : nullptr, scratch.values);
    publish();
    for (int first = 0; first < count; first += kBlockQueries) {
      if (count > kBlockQueries) configure(block_size(count, first));
      weigh_32(problem, segment, scratch.values, scratch.weights + first * kSegment, block_size(count, first),
               weighted + first * problem.head_dim + d);
    }
  }
}

void attend(const AttentionProblem& problem, const AttentionTile& tile, const AttentionSegment& segment,
            const AttentionSegment& next, float* memory, const SoftmaxState& state) {
  const int count = tile.num_tokens * problem.group;
  const Scratch scratch = partition(problem, count, memory);
  for (int first = 0; first < count; first += kBlockQueries) {
    const int block = block_size(count, first);
    configure(block);
    score_block(problem, segment, scratch.queries + first * problem.head_dim, block, scratch.scores + first * kSegment);
    publish();
    softmax_block(problem, tile, segment, first, block, scratch, state);
  }
  publish();
  weigh(problem, segment, count, KeysAhead(problem, segment, next), scratch, state.weighted);
  _tile_release();
  publish();
}

}  // namespace

const AttentionKernel kAmxAttention{2 * kBlockQueries, scratch_floats, load_queries, attend,
                                    merge_avx512,      store_avx512};

}  // namespace pelton
