// What the kernels that weigh values in bf16 share. Include from files compiled for AVX-512 with BF16 only.
#pragma once
#include <cstring>

#include "attention_avx512.h"

namespace pelton {

// Rounds one query's weights to bf16, two vectors at a time: keys in order, zeros for vectors of a pair that are not
// visited. `weights` may be the memory of the scores.
static inline void round_weights(const AttentionSegment& segment, const float* scores, void* weights) {
  for (int v = segment.first_vector / 2 * 2; v < segment.end_vector; v += 2) {
    const bool has_left = v >= segment.first_vector, has_right = v + 1 < segment.end_vector;
    const __m512 left = has_left ? _mm512_load_ps(scores + v * kLanes) : _mm512_setzero_ps();
    const __m512 right = has_right ? _mm512_load_ps(scores + (v + 1) * kLanes) : _mm512_setzero_ps();
    const __m512bh rounded = _mm512_cvtne2ps_pbh(right, left);
    std::memcpy(static_cast<BFloat16*>(weights) + v * kLanes, &rounded, sizeof rounded);
  }
}

}  // namespace pelton
