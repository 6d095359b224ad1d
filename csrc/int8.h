// Products with int8 weights, one scale an output, and x rounded to int8 in groups of 64 elements of a row:
// out[m][n] = scale[n] * sum over groups g of (scale of x[m][g] * sum over g of q(x)[m][k] * q[n][k]) (+ bias[n]).
//
// Sums within a group are integers and exact; groups are added up in fp32 by fused multiply-adds over ascending g, in
// every kernel: a row's bits depend neither on its neighbours nor on the instruction set.
//
// Packed weights: panels of 32 outputs, each [Kp / 4][2 blocks][16 outputs][4] bytes q + 128, then [2][16] fp32
// scales; Kp = K rounded up to 64. Of a gated weight, gate [N][K] over up [N][K], a panel holds 16 outputs of either:
// block 0 of gate, block 1 of up. Outputs and inputs that fill up have scale 0 and q 0.
#pragma once
#include <cstdint>

#include "element_type.h"
#include "quantized_rows.h"

namespace pelton {

constexpr int64_t kInt8GroupInputs = 64;
constexpr int64_t kInt8PanelOutputs = 32;
constexpr int32_t kInt8Offset = 128;
// Most rows of x that a register tile takes: 7 x 2 vectors of integers, as many of floats.
constexpr int64_t kInt8TileRows = 7;

using Int8Group = ActivationGroup<kInt8GroupInputs>;

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
  return int8_num_groups(num_inputs) * kInt8GroupInputs * kInt8PanelOutputs;
}
static inline int64_t int8_panel_bytes(int64_t num_inputs) {
  return int8_code_bytes(num_inputs) + kInt8PanelOutputs * static_cast<int64_t>(sizeof(float));
}

// Outputs of a call that a panel of weights gives, and number of panels.
static inline int64_t int8_panel_columns(bool gated) { return gated ? kInt8PanelOutputs / 2 : kInt8PanelOutputs; }
static inline int64_t int8_num_panels(int64_t num_outputs, bool gated) {
  return (num_outputs + int8_panel_columns(gated) - 1) / int8_panel_columns(gated);
}

// Where the weight of output `row`, counting gate's before up's, lies: panel, and lane of 32 in it.
struct Int8Place {
  int64_t panel, lane;
};
static inline Int8Place int8_place(int64_t row, int64_t num_outputs, bool gated) {
  if (!gated) return {row / 32, row % 32};
  const bool up = row >= num_outputs;
  const int64_t n = up ? row - num_outputs : row;
  return {n / 16, n % 16 + (up ? 16 : 0)};
}

// Of the code of input k of a lane, from the start of its panel.
static inline int64_t int8_code_offset(int64_t lane, int64_t k) { return k / 4 * 128 + lane * 4 + k % 4; }

// Quantizes rows [row, row + num_rows) of x to a panel [groups][num_rows].
using Int8QuantizeFunction = void (*)(const Int8Call&, int64_t row, int64_t num_rows, Int8Group* panel);
void int8_quantize_scalar(const Int8Call& call, int64_t row, int64_t num_rows, Int8Group* panel);

// Rows [row, row + num_rows), quantized as `rows` [groups][num_rows], times a panel of weights. `ahead` is what is
// read next, fetched meanwhile: `ahead_lines` cache lines for each of the groups, a group's 32 lines apart.
struct Int8Tile {
  const Int8Group* rows;
  int64_t row, num_rows;
  int64_t panel;
  const uint8_t* ahead;
  int64_t ahead_lines;
};
using Int8TileFunction = void (*)(const Int8Call&, const Int8Tile&);
void int8_tile_scalar(const Int8Call& call, const Int8Tile& tile);

#if defined(__x86_64__)
void int8_quantize_vnni(const Int8Call& call, int64_t row, int64_t num_rows, Int8Group* panel);
void int8_tile_vnni(const Int8Call& call, const Int8Tile& tile);
#endif

}  // namespace pelton
