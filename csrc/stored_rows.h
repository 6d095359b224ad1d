// Rows of a matrix as checkpoints store them, read as fp32: what weights are quantized from.
#pragma once
#include <cstdint>

#include "element_type.h"

namespace pelton {

// The numbers of formats/stored.py. A GGUF block is 32 elements of a row: a float16 scale, a float16 minimum (Q4_1
// alone), and the q; see formats/gguf.py.
enum class StoredType : int { kFloat32 = 0, kBFloat16 = 1, kFloat16 = 2, kQ4_0 = 3, kQ4_1 = 4, kQ8_0 = 5 };

struct StoredRows {
  const uint8_t* data;  // rows row_bytes apart, of any alignment
  int64_t row_bytes;
  StoredType type;
  int64_t num_rows;
  int64_t num_inputs;  // of blocks a multiple of 32
};

// One row to out [num_inputs], exactly but for the addition of a minimum.
using ReadRowFunction = void (*)(const StoredRows& rows, int64_t row, float* out);
void read_row_scalar(const StoredRows& rows, int64_t row, float* out);
#if defined(__x86_64__)
void read_row_avx512(const StoredRows& rows, int64_t row, float* out);
#endif

}  // namespace pelton
