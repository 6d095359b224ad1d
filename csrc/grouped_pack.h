// Into and out of the packed layout of grouped.h.
#pragma once
#include "grouped.h"

namespace pelton {

int64_t grouped_packed_bytes(GroupedKind kind, int64_t num_outputs, int64_t num_inputs, bool gated);

// Packs `num_rows` rows of GGUF blocks, Q4_0, Q4_1 or Q8_0 by kind, as the weight's rows from first_row on, gate's
// before up's. Lanes that no call packs, in the last panel, are zeroed by the caller.
void grouped_pack(const uint8_t* blocks, GroupedKind kind, int64_t num_rows, int64_t num_inputs, int64_t first_row,
                  int64_t num_outputs, bool gated, uint8_t* packed);

// The weight's rows `ids` as [num_rows][num_inputs], computed in fp32 and rounded once. False, and nothing is written,
// if an id is not a row.
bool grouped_unpack_rows(const uint8_t* packed, GroupedKind kind, bool rotated, const int64_t* ids, int64_t num_rows,
                         int64_t num_outputs, int64_t num_inputs, bool gated, void* out, ElementType out_type);

}  // namespace pelton
