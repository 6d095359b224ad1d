// Weights of 4 bits with a minimum, made from a checkpoint's rows of any type, in the layout of grouped.h.
//
// Of a group of 32, scale and minimum are found by least squares: for each of some trial scales around (largest -
// smallest) / 15, weights are rounded, the best scale and minimum for these q follow, and those with the smallest sum of
// squared errors are kept (as llama.cpp does for its K-quants). They become float16, and weights are rounded again.
#pragma once
#include <array>

#include "grouped.h"
#include "stored_rows.h"

namespace pelton {

// Quantizes `rows`, rotated or not, and packs them as the weight's rows from first_row on, gate's before up's. Lanes
// that no call packs, in the last panel, are zeroed by the caller. False if a value is not finite in float16.
bool grouped_quantize(const StoredRows& rows, bool rotated, int64_t first_row, int64_t num_outputs, bool gated,
                      uint8_t* packed);

// What 15 steps span, in ranges of a group: less than one cuts off the ends, which few weights reach.
constexpr std::array<float, 6> kTrialRanges{1.0f, 0.96f, 0.92f, 0.88f, 0.84f, 0.80f};

// Rotates a row [size], size a multiple of 64, norm and all.
using RotateRow = void (*)(float* row, int64_t size);
void rotate_row_scalar(float* row, int64_t size);

// 16 rows of fp32, [16][size], to all groups of a panel: those of lanes [begin, end) of the 16 that start at lane 0 or
// 16 of the panel, `lane`. The others are left as they are. False if a scale or minimum is not finite.
struct QuantizedBlock {
  const float* rows;
  int64_t size;
  int64_t lane, begin, end;
  uint8_t* panel;
};
using GroupedQuantizeBlock = bool (*)(const QuantizedBlock& block);
bool grouped_quantize_block_scalar(const QuantizedBlock& block);
#if defined(__x86_64__)
void rotate_row_avx512(float* row, int64_t size);
bool grouped_quantize_block_avx512(const QuantizedBlock& block);
#endif

}  // namespace pelton
