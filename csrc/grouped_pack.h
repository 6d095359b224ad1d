// Into and out of the packed layout of grouped.h.
#pragma once
#include "grouped.h"

namespace pelton {

int64_t grouped_packed_bytes(GroupedKind kind, int64_t num_outputs, int64_t num_inputs);

// Packs `num_rows` rows of GGUF blocks, Q4_0, Q4_1 or Q8_0 by kind, as outputs from first_output on. Outputs that no
// call packs, in the last 16, are zeroed by the caller.
void grouped_pack(const uint8_t* blocks, GroupedKind kind, int64_t num_rows, int64_t num_inputs, int64_t first_output,
                  uint8_t* packed);

// Rows `ids` as [num_rows][num_inputs], computed in fp32 and rounded once. False, and nothing is written, if an id is
// not in [0, num_outputs).
bool grouped_unpack_rows(const uint8_t* packed, GroupedKind kind, const int64_t* ids, int64_t num_rows,
                         int64_t num_outputs, int64_t num_inputs, void* out, ElementType out_type);

}  // namespace pelton
