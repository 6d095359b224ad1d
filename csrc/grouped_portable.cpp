// The portable kernel of grouped.h, which the others equal bit for bit but for silu's last bits.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "grouped.h"
#include "linear_epilogue.h"

namespace pelton {
namespace {

float half_at(const uint8_t* halves, int64_t index) {
  uint16_t half;
  std::memcpy(&half, halves + index * 2, sizeof half);
  return half_to_float(half);
}

// Element k of output n of a group, as an unsigned integer.
int32_t code_at(const uint8_t* group, bool eight_bits, int64_t n, int64_t k) {
  const int64_t byte = eight_bits ? k : k % 16;
  const int32_t stored = group[byte / 4 * 4 * kPanelOutputs + n * 4 + byte % 4];
  return eight_bits ? stored : k < 16 ? stored & 15 : stored >> 4;
}

// The product of a row and a lane of the panel before the bias.
float product(const GroupedCall& call, const GroupedTile& tile, int64_t r, int64_t lane) {
  const bool eight_bits = call.kind == GroupedKind::kEightBits;
  const int64_t codes_bytes = grouped_codes_bytes(call.kind);
  float sum = 0.0f;
  for (int64_t g = 0; g < call.num_inputs / kGroupInputs; ++g) {
    const GroupedRows& x = tile.rows[g * tile.num_rows + r];
    const uint8_t* group = tile.panel + g * grouped_bytes(call.kind);
    int32_t dot = x.start;
    for (int64_t k = 0; k < kGroupInputs; ++k) dot += code_at(group, eight_bits, lane, k) * x.q[k];
    sum = std::fma(static_cast<float>(dot), half_at(group + codes_bytes, lane) * x.scale, sum);
    if (call.kind == GroupedKind::kFourBitsMinimum) {
      sum = std::fma(half_at(group + codes_bytes, kPanelOutputs + lane), x.scaled_sum, sum);
    }
  }
  return sum;
}

template <typename X>
void quantize_row(const GroupedCall& call, const X* x, GroupedRows* groups, int64_t stride) {
  const int32_t offset = grouped_offset(call.kind);
  if (call.rotated) return quantize_row_scalar<true>(x, call.num_inputs, offset, groups, stride);
  return quantize_row_scalar<false>(x, call.num_inputs, offset, groups, stride);
}

}  // namespace

void grouped_quantize_scalar(const GroupedCall& call, int64_t row, int64_t num_rows, GroupedRows* panel) {
  for (int64_t r = 0; r < num_rows; ++r) {
    const int64_t at = (row + r) * call.x_stride;
    if (call.x_type == ElementType::kBFloat16) {
      quantize_row(call, static_cast<const BFloat16*>(call.x) + at, panel + r, num_rows);
    } else {
      quantize_row(call, static_cast<const float*>(call.x) + at, panel + r, num_rows);
    }
  }
}

void grouped_tile_scalar(const GroupedCall& call, const GroupedTile& tile) {
  const int64_t num_columns = std::min(panel_columns(call.gated), call.num_outputs - tile.column);
  for (int64_t r = 0; r < tile.num_rows; ++r) {
    for (int64_t n = 0; n < num_columns; ++n) {
      const float sum = product(call, tile, r, n);
      if (call.gated) {
        finish_gated_scalar(call, tile.row + r, tile.column + n, sum, product(call, tile, r, 16 + n));
      } else {
        finish_scalar(call, tile.row + r, tile.column + n, sum);
      }
    }
  }
}

}  // namespace pelton
