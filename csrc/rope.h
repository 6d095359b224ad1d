// Rotary embedding of queries and keys, fused with the write of keys and values into the paged KV cache.
#pragma once
#include <cstddef>
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
  float* key_scales;  // of the 8-bit types
  float* value_scales;
  const int64_t* slots;  // [T], -1 = not cached
  int64_t num_tokens;
  int head_dim, rotary_dim, page_size;
  int64_t key_page_stride, value_page_stride, scale_page_stride;  // elements
  ElementType type, cache_type;
};

// What an instruction set provides.
struct RopeKernel {
  // The heads of one token with their first rotary_dim dimensions turned by the angles of its position, rounded to
  // `type`, fp32 or bf16, at `to`, [head, head_dim].
  void (*rotate)(const RopeCall& call, const HeadsView& heads, int64_t token, int rotary_dim, ElementType type,
                 void* to);
  // One head rounded to `type`, int8 or e4m3, in units of the scale that it returns: its largest magnitude / that of the
  // type. Values that e4m3 would hold as denormals become zeros.
  float (*quantize)(const float* head, int head_dim, ElementType type, void* to);
};

constexpr float kSmallestScale = 1e-30f;      // a head with a smaller one becomes zeros: its inverse would overflow
constexpr float kSmallestFloat8 = 0x1p-6f;    // that is not a denormal
constexpr float kLargestFloat8 = 448, kLargestInt8 = 127;

// Where the heads of a token begin.
static inline const std::byte* heads_at(const RopeCall& call, const HeadsView& heads, int64_t token) {
  return static_cast<const std::byte*>(heads.data) + token * heads.token_stride * bytes_of(call.type);
}

extern const RopeKernel kPortableRope;
#if defined(__x86_64__)
extern const RopeKernel kAvx2Rope;    // needs cpu_features().avx2
extern const RopeKernel kAvx512Rope;  // needs cpu_features().avx512
#endif

// Runs the call on OpenMP's threads.
void rope_and_cache(const RopeCall& call, const RopeKernel& kernel);

}  // namespace pelton
