// What happens to eight finished fp32 sums of a product: bias, addition to what is there, rounding, store. For
// *_avx2.cpp; `Call` is that of one of the products.
#pragma once
#include "lanes_avx2.h"

namespace pelton {

template <typename Call, typename Lanes>
static inline __m256 add_bias(const Call& call, int64_t column, Lanes lanes, __m256 sums) {
  if (call.bias == nullptr) return sums;
  if (call.bias_type == ElementType::kBFloat16) {
    return _mm256_add_ps(sums, load_lanes(static_cast<const BFloat16*>(call.bias) + column, lanes));
  }
  return _mm256_add_ps(sums, load_lanes(static_cast<const float*>(call.bias) + column, lanes));
}

template <typename Call, typename Lanes>
static inline void store_result(const Call& call, int64_t row, int64_t column, Lanes lanes, __m256 result) {
  const int64_t at = row * call.out_stride + column;
  if (call.out_type == ElementType::kBFloat16) {
    store_lanes(static_cast<BFloat16*>(call.out) + at, result, lanes);
    return;
  }
  float* out = static_cast<float*>(call.out) + at;
  if (call.accumulate) result = _mm256_add_ps(result, load_lanes(out, lanes));
  store_lanes(out, result, lanes);
}

// Outputs [column, column + 8), as far as they lie before `column_end`.
template <typename Call>
static inline void finish(const Call& call, int64_t row, int64_t column, int64_t column_end, __m256 sums) {
  with_lanes(column_end - column, [&](auto lanes) {
    store_result(call, row, column, lanes, add_bias(call, column, lanes, sums));
  });
}

}  // namespace pelton
