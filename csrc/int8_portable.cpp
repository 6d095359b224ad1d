// The portable kernel of int8.h, which the others equal bit for bit but for silu's last bits.
#include <algorithm>
#include <cmath>

#include "int8.h"
#include "linear_epilogue.h"

namespace pelton {
namespace {

// The product before the bias.
float product(const Int8Call& call, const Int8Tile& tile, int64_t r, int64_t lane) {
  float sum = 0.0f;
  for (int64_t g = 0; g < int8_num_groups(call.num_inputs); ++g) {
    const Int8Group& x = tile.rows[g * tile.num_rows + r];
    int32_t dot = x.start;
    for (int64_t k = 0; k < kInt8GroupInputs; ++k) {
      dot += static_cast<int32_t>(tile.panel[int8_code_offset(lane, g * kInt8GroupInputs + k)]) * x.q[k];
    }
    sum = std::fma(static_cast<float>(dot), x.scale, sum);
  }
  float scale;
  std::memcpy(&scale, tile.panel + int8_code_bytes(call.num_inputs) + lane * 4, sizeof scale);
  return sum * scale;
}

}  // namespace

void int8_quantize_scalar(const Int8Call& call, int64_t row, int64_t num_rows, Int8Group* panel) {
  for (int64_t r = 0; r < num_rows; ++r) {
    const int64_t at = (row + r) * call.x_stride;
    if (call.x_type == ElementType::kBFloat16) {
      quantize_row_scalar<true>(static_cast<const BFloat16*>(call.x) + at, call.num_inputs, kInt8Offset, panel + r,
                                num_rows);
    } else {
      quantize_row_scalar<true>(static_cast<const float*>(call.x) + at, call.num_inputs, kInt8Offset, panel + r,
                                num_rows);
    }
  }
}

void int8_tile_scalar(const Int8Call& call, const Int8Tile& tile) {
  const int64_t column = tile.column;
  const int64_t num_columns = std::min(panel_columns(call.gated), call.num_outputs - column);
  for (int64_t r = 0; r < tile.num_rows; ++r) {
    for (int64_t n = 0; n < num_columns; ++n) {
      const float sum = product(call, tile, r, n);
      if (call.gated) {
        finish_gated_scalar(call, tile.row + r, column + n, sum, product(call, tile, r, 16 + n));
      } else {
        finish_scalar(call, tile.row + r, column + n, sum);
      }
    }
  }
}

}  // namespace pelton
