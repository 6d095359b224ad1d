// What happens to one finished fp32 sum of a product in the portable kernels: bias, addition to what is there,
// rounding, store.
#pragma once
#include <cmath>

#include "element_type.h"

namespace pelton {

// `Call` is LinearCall, GroupedCall or Int8Call.
template <typename Call>
static inline float add_bias(const Call& call, int64_t column, float sum) {
  if (call.bias == nullptr) return sum;
  return sum + (call.bias_type == ElementType::kBFloat16 ? to_float(static_cast<const BFloat16*>(call.bias)[column])
                                                         : static_cast<const float*>(call.bias)[column]);
}

template <typename Call>
static inline void store_result(const Call& call, int64_t row, int64_t column, float sum) {
  const int64_t at = row * call.out_stride + column;
  if (call.accumulate) sum += static_cast<const float*>(call.out)[at];
  if (call.out_type == ElementType::kBFloat16) {
    store(static_cast<BFloat16*>(call.out) + at, sum);
  } else {
    store(static_cast<float*>(call.out) + at, sum);
  }
}

template <typename Call>
static inline void finish_scalar(const Call& call, int64_t row, int64_t column, float sum) {
  store_result(call, row, column, add_bias(call, column, sum));
}

// Output `column` of a gated weight, from the sums of gate and up.
template <typename Call>
static inline void finish_gated_scalar(const Call& call, int64_t row, int64_t column, float gate, float up) {
  gate = add_bias(call, column, gate);
  up = add_bias(call, call.num_outputs + column, up);
  store_result(call, row, column, gate / (1.0f + std::exp(-gate)) * up);
}

}  // namespace pelton
