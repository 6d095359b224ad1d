// Rotary embedding of queries and keys, fused with the write of keys and values into the paged KV cache.
#pragma once
#include <cstdint>

#include "element_type.h"

namespace pelton {

// Heads of T tokens: element [token * token_stride + head * head_stride + d]. Elements are aligned, no more.
struct HeadsView {
  const void* data;
  int64_t token_stride, head_stride;
  int num_heads;
};

// Cache layouts as in attention.h. Nothing that is written overlaps anything that is read.
struct RopeCall {
  HeadsView query, key, value;  // no query heads and rotary_dim 0: only write the cache
  void* rotated_query;          // [T, query heads, head_dim] of `type`, contiguous
  const float* cos_sin;         // [positions, rotary_dim]: cosines of the first half, then sines
  const int64_t* positions;     // [T]
  void* key_cache;
  void* value_cache;
  const int64_t* slots;  // [T], -1 = not cached
  int64_t num_tokens;
  int head_dim, rotary_dim, page_size;
  int64_t key_page_stride, value_page_stride;  // elements
  ElementType type, cache_type;
};

// What an instruction set provides; each works on one head. `rotated` holds head_dim floats, 64-byte aligned.
struct RopeKernel {
  // rotated = the head at `from`, its first rotary_dim dimensions turned by the angles of one position.
  void (*rotate)(const RopeCall& call, const void* from, int rotary_dim, const float* cos_sin, float* rotated);
  // Rounds head_dim floats to `type` at `to`.
  void (*convert)(const RopeCall& call, const float* rotated, ElementType type, void* to);
};

extern const RopeKernel kPortableRope;
#if defined(__x86_64__)
extern const RopeKernel kAvx2Rope;    // needs cpu_features().avx2
extern const RopeKernel kAvx512Rope;  // needs cpu_features().avx512
#endif

// Runs the call on OpenMP's threads.
void rope_and_cache(const RopeCall& call, const RopeKernel& kernel);

}  // namespace pelton
