// What happens to eight finished fp32 sums of a product: bias, addition to what is there, rounding, store. For
// *_avx2.cpp; `Call` is LinearCall or GroupedCall.
#pragma once
#include "lanes_avx2.h"

namespace pelton {

template <typename Call, typename Lanes>
static inline void finish_lanes(const Call& call, int64_t row, int64_t column, Lanes lanes, __m256 sums) {
  if (call.bias != nullptr) {
    const __m256 bias = call.bias_type == ElementType::kBFloat16
                            ? load_lanes(static_cast<const BFloat16*>(call.bias) + column, lanes)
                            : load_lanes(static_cast<const float*>(call.bias) + column, lanes);
    sums = _mm256_add_ps(sums, bias);
  }
  const int64_t at = row * call.out_stride + column;
  if (call.out_type == ElementType::kBFloat16) {
    store_lanes(static_cast<BFloat16*>(call.out) + at, sums, lanes);
    return;
  }
  float* out = static_cast<float*>(call.out) + at;
  if (call.accumulate) sums = _mm256_add_ps(sums, load_lanes(out, lanes));
  store_lanes(out, sums, lanes);
}

// Outputs [column, column + 8), as far as they lie before `column_end`.
template <typename Call>
static inline void finish(const Call& call, int64_t row, int64_t column, int64_t column_end, __m256 sums) {
  const int64_t count = column_end - column;
  if (count >= 8) {
    finish_lanes(call, row, column, AllLanes{}, sums);
  } else if (count > 0) {
    finish_lanes(call, row, column, FirstLanes{static_cast<int>(count)}, sums);
  }
}

}  // namespace pelton
