// What happens to the finished fp32 sums of a tile of panel_product.h: bias, silu(gate) * up of a gated weight, rounding,
// store. For *_avx512.cpp and *_vnni.cpp; `Call` is GroupedCall or Int8Call.
#pragma once
#include "linear_epilogue_avx512.h"
#include "panel_product.h"

namespace pelton {

template <int kRows, typename Call>
static inline void store_gated(const Call& call, int64_t row, int64_t column, const __m512 (&sums)[kRows][2]) {
  const __mmask16 mask = lane_mask(call.num_outputs - column);
  const __m512 gate_bias = load_bias(call, column, mask);
  const __m512 up_bias = load_bias(call, call.num_outputs + column, mask);
#pragma GCC unroll 7
  for (int r = 0; r < kRows; ++r) {
    const __m512 gate = add_bias(call, sums[r][0], gate_bias);
    const __m512 up = add_bias(call, sums[r][1], up_bias);
    store_result(call, row + r, column, mask, _mm512_mul_ps(silu(gate), up));
  }
}

// Sums of rows [row, row + kRows) and the panel of the outputs from `column` on.
template <int kRows, typename Call>
static inline void store_panel(const Call& call, int64_t row, int64_t column, const __m512 (&sums)[kRows][2]) {
  if (call.gated) return store_gated<kRows>(call, row, column, sums);
#pragma GCC unroll 2
  for (int64_t v = 0; v < 2; ++v) {
    const int64_t first = column + v * 16;
    if (first >= call.num_outputs) return;
    const __mmask16 mask = lane_mask(call.num_outputs - first);
    const __m512 bias = load_bias(call, first, mask);
#pragma GCC unroll 7
    for (int r = 0; r < kRows; ++r) finish(call, row + r, first, mask, sums[r][v], bias);
  }
}

}  // namespace pelton
