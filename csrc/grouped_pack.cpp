// GGUF blocks to the layout of grouped.h, and its rows back to plain numbers.
//
// A GGUF block is 32 elements of a row: a float16 scale, a float16 minimum (Q4_1 alone), and the q; see
// formats/gguf.py. Its bytes are moved, never converted.
#include "grouped_pack.h"

#include <algorithm>
#include <cstring>

#include "pack_blocks.h"

namespace pelton {
namespace {

int64_t stored_block_bytes(GroupedKind kind) {
  return grouped_code_bytes(kind) + (kind == GroupedKind::kFourBitsMinimum ? 4 : 2);
}

// One block into lane n of a group of a panel.
template <GroupedKind kKind>
inline void pack_block(const uint8_t* block, uint8_t* group, int64_t n) {
  constexpr int64_t kCodeBytes = grouped_code_bytes(kKind);
  constexpr int64_t kNumHalves = kKind == GroupedKind::kFourBitsMinimum ? 2 : 1;
#pragma GCC unroll 2
  for (int64_t half = 0; half < kNumHalves; ++half) {
    std::memcpy(group + kPanelOutputs * (kCodeBytes + 2 * half) + n * 2, block + half * 2, 2);
  }
#pragma GCC unroll 8
  for (int64_t quad = 0; quad < kCodeBytes / 4; ++quad) {
    uint32_t codes;
    std::memcpy(&codes, block + kNumHalves * 2 + quad * 4, sizeof codes);
    if constexpr (kKind == GroupedKind::kEightBits) codes ^= 0x80808080u;  // + 128 for each byte
    std::memcpy(group + (quad * kPanelOutputs + n) * 4, &codes, sizeof codes);
  }
}

template <GroupedKind kKind>
void pack(const uint8_t* blocks, int64_t num_rows, int64_t num_inputs, int64_t first_row, int64_t num_outputs,
          bool gated, uint8_t* packed) {
  const int64_t num_groups = num_inputs / kGroupInputs;
  const int64_t block_bytes = stored_block_bytes(kKind);
  pack_blocks(num_rows, first_row, num_outputs, gated, [&](const RowBlock& rows) {
    uint8_t* group = packed + rows.place.panel * num_groups * grouped_bytes(kKind);
    for (int64_t g = 0; g < num_groups; ++g, group += grouped_bytes(kKind)) {
      for (int64_t row = rows.begin; row < rows.end; ++row) {
        pack_block<kKind>(blocks + (row * num_groups + g) * block_bytes, group, rows.place.lane + row - rows.begin);
      }
    }
    return true;
  });
}

float half_at(const uint8_t* halves, int64_t index) {
  uint16_t half;
  std::memcpy(&half, halves + index * 2, sizeof half);
  return half_to_float(half);
}

void unpack_row(const uint8_t* packed, GroupedKind kind, const PanelPlace& place, int64_t num_groups, float* out) {
  const int64_t code_bytes = grouped_code_bytes(kind);
  const int32_t offset = grouped_offset(kind);
  const int64_t n = place.lane;
  for (int64_t g = 0; g < num_groups; ++g, out += kGroupInputs) {
    const uint8_t* group = packed + (place.panel * num_groups + g) * grouped_bytes(kind);
    const uint8_t* halves = group + grouped_codes_bytes(kind);
    const float scale = half_at(halves, n);
    const float minimum = kind == GroupedKind::kFourBitsMinimum ? half_at(halves, kPanelOutputs + n) : 0.0f;
    for (int64_t byte = 0; byte < code_bytes; ++byte) {
      const int32_t codes = group[byte / 4 * 4 * kPanelOutputs + n * 4 + byte % 4];
      if (kind == GroupedKind::kEightBits) {
        out[byte] = scale * static_cast<float>(codes - offset);
      } else {
        out[byte] = scale * static_cast<float>((codes & 15) - offset) + minimum;
        out[byte + 16] = scale * static_cast<float>((codes >> 4) - offset) + minimum;
      }
    }
  }
}

}  // namespace

int64_t grouped_packed_bytes(GroupedKind kind, int64_t num_outputs, int64_t num_inputs, bool gated) {
  return count_panels(num_outputs, gated) * (num_inputs / kGroupInputs) * grouped_bytes(kind);
}

void grouped_pack(const uint8_t* blocks, GroupedKind kind, int64_t num_rows, int64_t num_inputs, int64_t first_row,
                  int64_t num_outputs, bool gated, uint8_t* packed) {
  switch (kind) {
    case GroupedKind::kFourBits:
      return pack<GroupedKind::kFourBits>(blocks, num_rows, num_inputs, first_row, num_outputs, gated, packed);
    case GroupedKind::kFourBitsMinimum:
      return pack<GroupedKind::kFourBitsMinimum>(blocks, num_rows, num_inputs, first_row, num_outputs, gated, packed);
    case GroupedKind::kEightBits:
      return pack<GroupedKind::kEightBits>(blocks, num_rows, num_inputs, first_row, num_outputs, gated, packed);
  }
}

bool grouped_unpack_rows(const uint8_t* packed, GroupedKind kind, bool rotated, const int64_t* ids, int64_t num_rows,
                         int64_t num_outputs, int64_t num_inputs, bool gated, void* out, ElementType out_type) {
  const int64_t limit = gated ? 2 * num_outputs : num_outputs;
  const auto inside = [limit](int64_t id) { return id >= 0 && id < limit; };
  if (!std::all_of(ids, ids + num_rows, inside)) return false;
  auto* values = scratch<float>(num_inputs);
  for (int64_t row = 0; row < num_rows; ++row) {
    unpack_row(packed, kind, panel_place(ids[row], num_outputs, gated), num_inputs / kGroupInputs, values);
    for (int64_t first = 0; rotated && first < num_inputs; first += kRotatedInputs) unrotate_scalar(values + first);
    for (int64_t k = 0; k < num_inputs; ++k) {
      if (out_type == ElementType::kBFloat16) {
        store(static_cast<BFloat16*>(out) + row * num_inputs + k, values[k]);
      } else {
        store(static_cast<float*>(out) + row * num_inputs + k, values[k]);
      }
    }
  }
  return true;
}

}  // namespace pelton
