// Products with int8 weights, one scale an output, and x rounded to int8 in groups of 64 elements of a row:
// out[m][n] = scale[n] * sum over groups g of (scale of x[m][g] * sum over g of q(x)[m][k] * q[n][k]) (+ bias[n]).
// Before they are rounded, x and weights are rotated by blocks of 64 inputs (quantized_rows.h).
//
// Sums within a group are integers and exact; groups are added up in fp32 by fused multiply-adds over ascending g, in
// every kernel: a row's bits depend neither on its neighbours nor on the instruction set.
//
// Packed weights: panels of 32 outputs, each [Kp / 4][32 outputs][4] bytes q + 128, then 32 fp32 scales; Kp = K rounded
// up to 64. Outputs and inputs that fill up have scale 0 and q 0.
#pragma once
#include <cstdint>

#include "element_type.h"
#include "panel_product.h"

namespace pelton {

constexpr int64_t kInt8GroupInputs = 64;
constexpr int32_t kInt8Offset = 128;

using Int8Group = ActivationGroup<kInt8GroupInputs>;
using Int8Tile = PanelTile<Int8Group>;

struct Int8Call {
  const void* x;  // [num_rows][num_inputs], rows x_stride elements apart; element alignment suffices
  int64_t x_stride;
  ElementType x_type;
  const uint8_t* weight;  // packed as above, 64-byte aligned
  bool gated;             // out = silu(gate) * up; bias is that of gate, then that of up
  const void* bias;       // [num_outputs], gated [2 * num_outputs], or null
  ElementType bias_type;
  void* out;  // [num_rows][num_outputs], rows out_stride elements apart; overlaps no input
  int64_t out_stride;
  ElementType out_type;
  bool accumulate;  // add to what out holds; out_type is fp32 then
  int64_t num_rows;
  int64_t num_outputs;
  int64_t num_inputs;
};

static inline int64_t int8_num_groups(int64_t num_inputs) {
  return (num_inputs + kInt8GroupInputs - 1) / kInt8GroupInputs;
}

// Of the q of a panel, and of all of it.
static inline int64_t int8_code_bytes(int64_t num_inputs) {
  return int8_num_groups(num_inputs) * kInt8GroupInputs * kPanelOutputs;
}
static inline int64_t int8_panel_bytes(int64_t num_inputs) {
  return int8_code_bytes(num_inputs) + kPanelOutputs * static_cast<int64_t>(sizeof(float));
}

// Of the code of input k of a lane, from the start of its panel.
static inline int64_t int8_code_offset(int64_t lane, int64_t k) { return k / 4 * 128 + lane * 4 + k % 4; }

// Quantizes rows [row, row + num_rows) of x to a panel [groups][num_rows].
using Int8QuantizeFunction = void (*)(const Int8Call&, int64_t row, int64_t num_rows, Int8Group* panel);
void int8_quantize_scalar(const Int8Call& call, int64_t row, int64_t num_rows, Int8Group* panel);

using Int8TileFunction = void (*)(const Int8Call&, const Int8Tile&);
void int8_tile_scalar(const Int8Call& call, const Int8Tile& tile);

#if defined(__x86_64__)
void int8_quantize_avx2(const Int8Call& call, int64_t row, int64_t num_rows, Int8Group* panel);
void int8_tile_avx2(const Int8Call& call, const Int8Tile& tile);
void int8_quantize_vnni(const Int8Call& call, int64_t row, int64_t num_rows, Int8Group* panel);
void int8_tile_vnni(const Int8Call& call, const Int8Tile& tile);
#endif

}  // namespace pelton
