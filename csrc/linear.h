// Dense products out[m][n] = sum over k of x[m][k] * weight[n][k] (+ bias[n]), accumulated in fp32.
//
// Every output is one chain of additions over ascending k, whatever the number of rows, the tile it falls in and
// the thread that computes it: a row's bits never depend on its neighbours. Instruction sets round differently,
// so one call uses one of them throughout, and a machine keeps to one per pair of types.
//
// Packed weights: [ceil(N / 16)][Kp / u][16][u], zero padded. bf16: u = 2, Kp = K rounded up to 32, so that
// 16 outputs x 2 inputs fill a vector and 16 such vectors an AMX tile. fp32: u = 1, Kp = K.
#pragma once
#include <cstdint>

#include "element_type.h"

namespace pelton {

constexpr int64_t kBlockColumns = 16;

struct LinearCall {
  const void* x;  // [num_rows][num_inputs], rows x_stride elements apart; element alignment suffices
  int64_t x_stride;
  ElementType x_type;
  const void* weight;  // packed as above, 64-byte aligned; bf16 x with fp32 weights is not supported
  ElementType weight_type;
  const void* bias;  // [num_outputs] or null
  ElementType bias_type;
  void* out;  // [num_rows][num_outputs], rows out_stride elements apart; overlaps no input
  int64_t out_stride;
  ElementType out_type;
  bool accumulate;  // add to what out holds; out_type is fp32 then
  int64_t num_rows;
  int64_t num_outputs;
  int64_t num_inputs;
};

// Outputs [row_begin, row_end) x [column_begin, column_end). Columns begin at a multiple of kBlockColumns and
// end at one or at num_outputs.
struct LinearTile {
  int64_t row_begin, row_end, column_begin, column_end;
};

using LinearFunction = void (*)(const LinearCall&, const LinearTile&);

void linear_scalar(const LinearCall& call, const LinearTile& tile);

#if defined(__x86_64__)
void linear_avx2(const LinearCall& call, const LinearTile& tile);    // any types, multiplied in fp32
void linear_avx512(const LinearCall& call, const LinearTile& tile);
void linear_avx512_bf16(const LinearCall& call, const LinearTile& tile);  // bf16 x and bf16 weights
void linear_amx_bf16(const LinearCall& call, const LinearTile& tile);     // bf16 x and bf16 weights

// Packs 16 rows of num_units 32-bit units, num_units a multiple of 16: [16][num_units] -> [num_units][16].
// `packed` is 64-byte aligned and does not overlap source.
void transpose_avx2(const void* source, int64_t stride_bytes, int64_t num_units, uint32_t* packed);
void transpose_avx512(const void* source, int64_t stride_bytes, int64_t num_units, uint32_t* packed);
#endif

static inline int64_t padded_inputs(ElementType type, int64_t num_inputs) {
  return type == ElementType::kBFloat16 ? (num_inputs + 31) / 32 * 32 : num_inputs;
}

}  // namespace pelton
