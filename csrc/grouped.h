// Products with weights of 4 or 8 bits in groups of 32 inputs, w[n][k] = scale[n][g] * q[n][k] (+ minimum[n][g]):
// out[m][n] = sum over k of x[m][k] * w[n][k] (+ bias[n]).
//
// x is quantized first, each group of a row to int8 times (largest magnitude / 127), as llama.cpp does for the same
// files. Sums within a group are integers and exact; those of the groups are added up in fp32 by fused multiply-adds
// over ascending g, in every kernel: a row's bits depend neither on its neighbours nor on the instruction set.
//
// Packed weights: panels of 32 outputs (panel_product.h), each [K / 32] groups of [quads of k][32 outputs][4] q, then 32
// float16 scales and, where the kind has them, 32 float16 minimums. With 4 bits, byte i of an output holds element i low
// and element i + 16 high, as in GGUF. Signed q are stored with an offset that makes them unsigned.
#pragma once
#include <cstdint>

#include "element_type.h"
#include "panel_product.h"

namespace pelton {

enum class GroupedKind : int { kFourBits = 0, kFourBitsMinimum = 1, kEightBits = 2 };

constexpr int64_t kGroupInputs = 32;

// What is added to a signed q in storage.
constexpr int32_t grouped_offset(GroupedKind kind) {
  return kind == GroupedKind::kFourBits ? 8 : kind == GroupedKind::kEightBits ? 128 : 0;
}

// Of the q of one output in one group.
constexpr int64_t grouped_code_bytes(GroupedKind kind) { return kind == GroupedKind::kEightBits ? 32 : 16; }

// Of one group of a panel: of its q, and in all.
constexpr int64_t grouped_codes_bytes(GroupedKind kind) { return kPanelOutputs * grouped_code_bytes(kind); }
constexpr int64_t grouped_bytes(GroupedKind kind) {
  return kPanelOutputs * (grouped_code_bytes(kind) + (kind == GroupedKind::kFourBitsMinimum ? 4 : 2));
}

using GroupedRows = ActivationGroup<kGroupInputs>;
using GroupedTile = PanelTile<GroupedRows>;

struct GroupedCall {
  const void* x;  // [num_rows][num_inputs], rows x_stride elements apart; element alignment suffices
  int64_t x_stride;
  ElementType x_type;
  const uint8_t* weight;  // packed as above, 64-byte aligned
  GroupedKind kind;
  bool rotated;      // the weight is of inputs rotated by blocks of 64 (quantized_rows.h), num_inputs a multiple of it
  bool gated;        // out = silu(gate) * up; bias is that of gate, then that of up
  const void* bias;  // [num_outputs], gated [2 * num_outputs], or null
  ElementType bias_type;
  void* out;  // [num_rows][num_outputs], rows out_stride elements apart; overlaps no input
  int64_t out_stride;
  ElementType out_type;
  bool accumulate;  // add to what out holds; out_type is fp32 then
  int64_t num_rows;
  int64_t num_outputs;
  int64_t num_inputs;  // a multiple of kGroupInputs
};

// Quantizes rows [row, row + num_rows) of x to a panel [groups][num_rows].
using GroupedQuantizeFunction = void (*)(const GroupedCall&, int64_t row, int64_t num_rows, GroupedRows* panel);
void grouped_quantize_scalar(const GroupedCall& call, int64_t row, int64_t num_rows, GroupedRows* panel);

using GroupedTileFunction = void (*)(const GroupedCall&, const GroupedTile& tile);
void grouped_tile_scalar(const GroupedCall& call, const GroupedTile& tile);

#if defined(__x86_64__)
void grouped_quantize_avx2(const GroupedCall& call, int64_t row, int64_t num_rows, GroupedRows* panel);
void grouped_tile_avx2(const GroupedCall& call, const GroupedTile& tile);
void grouped_quantize_vnni(const GroupedCall& call, int64_t row, int64_t num_rows, GroupedRows* panel);
void grouped_tile_vnni(const GroupedCall& call, const GroupedTile& tile);
#endif

}  // namespace pelton
