// Paged attention over mixed prefill and decode rows: the problem, how it is cut into work, and what a kernel provides.
//
// A query token's result must not depend on what is computed beside it. The keys of a row are therefore cut into
// segments of kSegment keys, counted from position 0. A kernel takes the softmax of one segment at a time, adding up
// keys in ascending order for each query alone, and the partial results of the segments are merged in ascending order.
// A masked key or segment adds exact zeros, so tile sizes, chunk boundaries and the division of work among threads
// change no bit of the result.
#pragma once
#include <cstddef>
#include <cstdint>

#include "element_type.h"

namespace pelton {

inline constexpr int kSegment = 256;         // keys of one softmax, also the unit by which a long context is split
inline constexpr int kKeyVector = 16;        // keys side by side in a page, and the divisor of every page size
inline constexpr int kNoWindow = 1 << 30;
inline constexpr float kEmptyMax = -3.0e38f;  // maximum over no keys; finite, so that differences of maxima are

// Layouts (see ops/kv.py), with x = 4 / sizeof(element): key_cache [page, kv_head, head_dim / x, page_size, x],
// value_cache [page, kv_head, page_size / x, head_dim, x]. All but the page stride is contiguous; x elements are aligned
// to 4 bytes, no more. head_dim is a multiple of 16.
// The output [token, head, head_dim] is contiguous and overlaps nothing else. Strides count elements.
struct AttentionProblem {
  const void* query;
  void* output;
  const void* key_cache;
  const void* value_cache;
  const float* key_scales;  // of the 8-bit types, [page, kv_head, page_size], contiguous but for the page stride
  const float* value_scales;
  const int32_t* row_starts;    // [num_rows + 1]
  const int32_t* context_lens;  // [num_rows]
  const int32_t* page_table;    // [num_rows, page_table_stride]
  int num_rows, num_heads, num_kv_heads, head_dim, page_size;
  int64_t page_table_stride, query_token_stride, query_head_stride, key_page_stride, value_page_stride;
  int64_t scale_page_stride;
  ElementType query_type, cache_type;  // the output is of query_type
  int window;                          // keys that a token sees, itself included; kNoWindow = all
  // Turns a product of query and key into units of log2, or of the soft cap where there is one.
  float query_scale;   // scale * log2(e), or scale / softcap
  float capped_scale;  // softcap * log2(e); 0 = no soft cap
  int group;           // query heads of one KV head
};

// Consecutive tokens of one row, for the query heads that share one KV head. Query i of the tile is head i % group of
// token i / group.
struct AttentionTile {
  int row;
  int first_token;     // index into the packed tokens
  int num_tokens;
  int first_position;  // of first_token in its sequence
  int kv_head;
  int first_key, end_key;  // the keys that some token of the tile sees
};

// Where the keys of one segment lie. Vector v holds the 16 keys from position begin + 16 v.
struct AttentionSegment {
  int begin;               // first position of the segment, a multiple of kSegment
  int first_key, end_key;  // keys to visit, relative to begin
  int first_vector, end_vector;  // those that hold these keys; the rest of the arrays is not set
  const std::byte* keys[kSegment / kKeyVector];    // key (d = 0, first of the 16 keys)
  const std::byte* values[kSegment / kKeyVector];  // value of the first of the 16 keys
  const float* key_scales[kSegment / kKeyVector];  // of the 16 keys, where the cache's type has scales
  const float* value_scales[kSegment / kKeyVector];
};

// Softmax over some keys, per query: the largest score (in log2 units), the sum of 2^(score - largest), and the
// values weighted by the same, [query, head_dim].
struct SoftmaxState {
  float* maximum;
  float* sum;
  float* weighted;
};

// One implementation. `queries` is num_tokens * group. Pointers to floats are 64-byte aligned and don't overlap.
struct AttentionKernel {
  int tile_queries;  // queries of a tile, unless one token has more
  // Floats of scratch for a tile of that many queries.
  std::size_t (*scratch_floats)(const AttentionProblem& problem, int queries);
  // Gather the tile's queries in scratch.
  void (*load_queries)(const AttentionProblem& problem, const AttentionTile& tile, float* scratch);
  // Softmax over one segment into `state`, from the queries in scratch. The thread visits `next` afterwards: few
  // queries are done with a segment before memory has brought another one, which must be asked for early.
  void (*attend)(const AttentionProblem& problem, const AttentionTile& tile, const AttentionSegment& segment,
                 const AttentionSegment& next, float* scratch, const SoftmaxState& state);
  // into = into merged with `from`, whose keys follow those of `into`.
  void (*merge)(const AttentionProblem& problem, int queries, const SoftmaxState& into, const SoftmaxState& from);
  // Divide by the sum and write the tile's outputs.
  void (*store)(const AttentionProblem& problem, const AttentionTile& tile, const SoftmaxState& state);
};

extern const AttentionKernel kPortableAttention;
#if defined(__x86_64__)
extern const AttentionKernel kAvx2Attention;    // needs cpu_features().avx2; takes caches of fp32 and bf16
extern const AttentionKernel kAvx512Attention;  // needs cpu_features().avx512
// Needs cpu_features().avx512_bf16; takes bf16 queries and caches of bf16 or e4m3.
extern const AttentionKernel kAvx512Bf16Attention;
extern const AttentionKernel kVnniAttention;  // needs cpu_features().avx512_vnni; takes int8 caches
// Needs cpu_features().amx_bf16; takes bf16 queries and caches whose head_dim is a multiple of 32.
extern const AttentionKernel kAmxAttention;
#endif

// Runs the problem on OpenMP's threads.
void paged_attention(const AttentionProblem& problem, const AttentionKernel& kernel);

}  // namespace pelton
