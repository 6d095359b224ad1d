// Into and out of the packed layout of int8.h.
#pragma once
#include "int8.h"
#include "stored_rows.h"

namespace pelton {

int64_t int8_packed_bytes(int64_t num_outputs, int64_t num_inputs, bool gated);

// Quantizes `rows` and packs them as the weight's rows from first_row on, gate's before up's: each, rotated, to int8
// times (its largest magnitude / 127). Lanes that no call packs, in the last panel, are zeroed by the caller. False if a
// value is not finite.
bool int8_pack(const StoredRows& rows, int64_t first_row, int64_t num_outputs, bool gated, uint8_t* packed);

// The weight's rows `ids`, computed in fp32 and rounded once, to [num_rows][num_inputs]. False, and nothing is
// written, if an id is not a row.
bool int8_unpack_rows(const uint8_t* packed, const int64_t* ids, int64_t num_rows, int64_t num_outputs,
                      int64_t num_inputs, bool gated, void* out, ElementType out_type);

// One row of fp32, which is rotated in place, to as many codes q + 128. `size` is a multiple of 64. Returns the scale,
// which is not finite if an element is not.
using Int8QuantizeWeights = float (*)(float* weights, int64_t size, uint8_t* codes);
float int8_quantize_weights_scalar(float* weights, int64_t size, uint8_t* codes);

// 16 rows of codes, `padded` bytes apart and 64-byte aligned, into 16 lanes of a panel. `padded` is a multiple of 64.
using Int8Transpose = void (*)(const uint8_t* codes, int64_t padded, uint8_t* lanes);
void int8_transpose_scalar(const uint8_t* codes, int64_t padded, uint8_t* lanes);

#if defined(__x86_64__)
float int8_quantize_weights_avx512(float* weights, int64_t size, uint8_t* codes);
void int8_transpose_avx512(const uint8_t* codes, int64_t padded, uint8_t* lanes);
#endif

}  // namespace pelton
