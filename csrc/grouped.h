// Products with weights of 4 or 8 bits in groups of 32 inputs, w[n][k] = scale[n][g] * q[n][k] (+ minimum[n][g]):
// out[m][n] = sum over k of x[m][k] * w[n][k] (+ bias[n]).
//
// x is quantized first, each group of a row to int8 times (largest magnitude / 127), as llama.cpp does for the same
// files. Sums within a group are integers and exact; those of the groups are added up in fp32 by fused multiply-adds
// over ascending g, in every kernel: a row's bits depend neither on its neighbours nor on the instruction set.
//
// Packed weights: [ceil(N / 16)][K / 32] groups of 16 outputs, each 16 x 32 q, 16 float16 scales and, where the kind
// has them, 16 float16 minimums. q lie as [quads of k][16 outputs][4]; with 4 bits, byte i of an output holds element
// i low and element i + 16 high, as in GGUF. Signed q are stored with an offset that makes them unsigned.
#pragma once
#include <cstdint>

#include "element_type.h"

namespace pelton {

enum class GroupedKind : int { kFourBits = 0, kFourBitsMinimum = 1, kEightBits = 2 };

constexpr int64_t kGroupInputs = 32;
constexpr int64_t kGroupOutputs = 16;
// Most rows of x that a register tile takes.
constexpr int64_t kMaxPanelRows = 12;

// What is added to a signed q in storage.
constexpr int32_t grouped_offset(GroupedKind kind) {
  return kind == GroupedKind::kFourBits ? 8 : kind == GroupedKind::kEightBits ? 128 : 0;
}

// Of the q of one output in one group.
constexpr int64_t grouped_code_bytes(GroupedKind kind) { return kind == GroupedKind::kEightBits ? 32 : 16; }

// Of one group of 16 outputs.
constexpr int64_t grouped_bytes(GroupedKind kind) {
  return kGroupOutputs * (grouped_code_bytes(kind) + (kind == GroupedKind::kFourBitsMinimum ? 4 : 2));
}

// 32 elements of a row of x. A group with a value that is not finite has a scale that is not finite and zeros.
struct ActivationGroup {
  int8_t q[kGroupInputs];
  float scale;
  float scaled_sum;  // scale * sum of q: multiplies the minimum
  int32_t start;     // -offset * sum of q: undoes the offset of the weights
};

struct GroupedCall {
  const void* x;  // [num_rows][num_inputs], rows x_stride elements apart; element alignment suffices
  int64_t x_stride;
  ElementType x_type;
  const uint8_t* weight;  // packed as above
  GroupedKind kind;
  const void* bias;  // [num_outputs] or null
  ElementType bias_type;
  void* out;  // [num_rows][num_outputs], rows out_stride elements apart; overlaps no input
  int64_t out_stride;
  ElementType out_type;
  bool accumulate;  // add to what out holds; out_type is fp32 then
  int64_t num_rows;
  int64_t num_outputs;
  int64_t num_inputs;  // a multiple of kGroupInputs
};

// Quantizes row `row` of x to groups[0], groups[stride], groups[2 * stride] ...
using QuantizeFunction = void (*)(const GroupedCall&, int64_t row, ActivationGroup* groups, int64_t stride);
void quantize_row_scalar(const GroupedCall& call, int64_t row, ActivationGroup* groups, int64_t stride);

// A panel is up to kMaxPanelRows quantized rows, [num_inputs / 32][num_rows]. Computes rows [row, row + num_rows) of
// the outputs [column, column + 16), column a multiple of 16.
using GroupedTileFunction = void (*)(const GroupedCall&, const ActivationGroup* panel, int64_t row, int64_t num_rows,
                                     int64_t column);
void grouped_tile_scalar(const GroupedCall& call, const ActivationGroup* panel, int64_t row, int64_t num_rows,
                         int64_t column);

#if defined(__x86_64__)
void quantize_row_vnni(const GroupedCall& call, int64_t row, ActivationGroup* groups, int64_t stride);
void grouped_tile_vnni(const GroupedCall& call, const ActivationGroup* panel, int64_t row, int64_t num_rows,
                       int64_t column);
#endif

}  // namespace pelton
