// What happens to 16 finished fp32 sums of a product: bias, addition to what is there, rounding, store. For
// *_avx512.cpp, *_amx.cpp and *_vnni.cpp; `Call` is LinearCall, GroupedCall or Int8Call.
#pragma once
#include "lanes_avx512.h"

namespace pelton {

// Bias of outputs [column, column + 16), zero where there is none.
template <typename Call>
static inline __m512 load_bias(const Call& call, int64_t column, __mmask16 mask) {
  if (call.bias == nullptr) return _mm512_setzero_ps();
  if (call.bias_type == ElementType::kBFloat16) {
    return load_lanes(static_cast<const BFloat16*>(call.bias) + column, mask);
  }
  return load_lanes(static_cast<const float*>(call.bias) + column, mask);
}

// Adds the bias unless there is none: adding zero would turn -0 into +0.
template <typename Call>
static inline __m512 add_bias(const Call& call, __m512 sums, __m512 bias) {
  return call.bias != nullptr ? _mm512_add_ps(sums, bias) : sums;
}

template <typename Call>
static inline void store_result(const Call& call, int64_t row, int64_t column, __mmask16 mask, __m512 sums) {
  const int64_t at = row * call.out_stride + column;
  if (call.out_type == ElementType::kBFloat16) {
    store_lanes(static_cast<BFloat16*>(call.out) + at, sums, mask);
    return;
  }
  float* out = static_cast<float*>(call.out) + at;
  if (call.accumulate) sums = _mm512_add_ps(sums, load_lanes(out, mask));
  store_lanes(out, sums, mask);
}

template <typename Call>
static inline void finish(const Call& call, int64_t row, int64_t column, __mmask16 mask, __m512 sums, __m512 bias) {
  store_result(call, row, column, mask, add_bias(call, sums, bias));
}

}  // namespace pelton
