// GGUF blocks to the layout of grouped.h, and its rows back to plain numbers.
//
// A GGUF block is 32 elements of a row: a float16 scale, a float16 minimum (Q4_1 alone), and the q; see
// formats/gguf.py. Its bytes are moved, never converted.
#include "grouped_pack.h"

#include <algorithm>
#include <cstring>

#include "parallel.h"

namespace pelton {
namespace {

int64_t stored_block_bytes(GroupedKind kind) {
  return grouped_code_bytes(kind) + (kind == GroupedKind::kFourBitsMinimum ? 4 : 2);
}

// One block into lane n of a packed group.
template <GroupedKind kKind>
inline void pack_block(const uint8_t* block, uint8_t* group, int64_t n) {
  constexpr int64_t kCodeBytes = grouped_code_bytes(kKind);
  constexpr int64_t kNumHalves = kKind == GroupedKind::kFourBitsMinimum ? 2 : 1;
#pragma GCC unroll 2
  for (int64_t half = 0; half < kNumHalves; ++half) {
    std::memcpy(group + kGroupOutputs * (kCodeBytes + 2 * half) + n * 2, block + half * 2, 2);
  }
#pragma GCC unroll 8
  for (int64_t quad = 0; quad < kCodeBytes / 4; ++quad) {
    uint32_t codes;
    std::memcpy(&codes, block + kNumHalves * 2 + quad * 4, sizeof codes);
    if constexpr (kKind == GroupedKind::kEightBits) codes ^= 0x80808080u;  // + 128 for each byte
    std::memcpy(group + (quad * kGroupOutputs + n) * 4, &codes, sizeof codes);
  }
}

template <GroupedKind kKind>
void pack(const uint8_t* blocks, int64_t num_rows, int64_t num_groups, int64_t first_output, uint8_t* packed) {
  const int64_t block_bytes = stored_block_bytes(kKind);
  const int64_t first_panel = first_output / kGroupOutputs;
  const int64_t end = first_output + num_rows;
  run_tasks((end + kGroupOutputs - 1) / kGroupOutputs - first_panel, [&](int64_t task) {
    const int64_t panel = first_panel + task;
    const int64_t begin_row = std::max(panel * kGroupOutputs, first_output);
    const int64_t end_row = std::min((panel + 1) * kGroupOutputs, end);
    for (int64_t g = 0; g < num_groups; ++g) {
      uint8_t* group = packed + (panel * num_groups + g) * grouped_bytes(kKind);
      for (int64_t n = begin_row; n < end_row; ++n) {
        const uint8_t* block = blocks + ((n - first_output) * num_groups + g) * block_bytes;
        pack_block<kKind>(block, group, n % kGroupOutputs);
      }
    }
  });
}

float half_at(const uint8_t* halves, int64_t index) {
  uint16_t half;
  std::memcpy(&half, halves + index * 2, sizeof half);
  return half_to_float(half);
}

template <typename Element>
void unpack_row(const uint8_t* packed, GroupedKind kind, int64_t row, int64_t num_groups, Element* out) {
  const int64_t code_bytes = grouped_code_bytes(kind);
  const int32_t offset = grouped_offset(kind);
  const int64_t n = row % kGroupOutputs;
  for (int64_t g = 0; g < num_groups; ++g, out += kGroupInputs) {
    const uint8_t* group = packed + (row / kGroupOutputs * num_groups + g) * grouped_bytes(kind);
    const uint8_t* halves = group + kGroupOutputs * code_bytes;
    const float scale = half_at(halves, n);
    const float minimum = kind == GroupedKind::kFourBitsMinimum ? half_at(halves, kGroupOutputs + n) : 0.0f;
    for (int64_t byte = 0; byte < code_bytes; ++byte) {
      const int32_t codes = group[byte / 4 * 4 * kGroupOutputs + n * 4 + byte % 4];
      if (kind == GroupedKind::kEightBits) {
        store(out + byte, scale * static_cast<float>(codes - offset));
      } else {
        store(out + byte, scale * static_cast<float>((codes & 15) - offset) + minimum);
        store(out + byte + 16, scale * static_cast<float>((codes >> 4) - offset) + minimum);
      }
    }
  }
}

template <typename Element>
void unpack_rows(const uint8_t* packed, GroupedKind kind, const int64_t* ids, int64_t num_rows, int64_t num_groups,
                 Element* out) {
  for (int64_t row = 0; row < num_rows; ++row) {
    unpack_row(packed, kind, ids[row], num_groups, out + row * num_groups * kGroupInputs);
  }
}

}  // namespace

int64_t grouped_packed_bytes(GroupedKind kind, int64_t num_outputs, int64_t num_inputs) {
  return (num_outputs + kGroupOutputs - 1) / kGroupOutputs * (num_inputs / kGroupInputs) * grouped_bytes(kind);
}

void grouped_pack(const uint8_t* blocks, GroupedKind kind, int64_t num_rows, int64_t num_inputs, int64_t first_output,
                  uint8_t* packed) {
  const int64_t num_groups = num_inputs / kGroupInputs;
  switch (kind) {
    case GroupedKind::kFourBits:
      return pack<GroupedKind::kFourBits>(blocks, num_rows, num_groups, first_output, packed);
    case GroupedKind::kFourBitsMinimum:
      return pack<GroupedKind::kFourBitsMinimum>(blocks, num_rows, num_groups, first_output, packed);
    case GroupedKind::kEightBits:
      return pack<GroupedKind::kEightBits>(blocks, num_rows, num_groups, first_output, packed);
  }
}

bool grouped_unpack_rows(const uint8_t* packed, GroupedKind kind, const int64_t* ids, int64_t num_rows,
                         int64_t num_outputs, int64_t num_inputs, void* out, ElementType out_type) {
  const auto inside = [num_outputs](int64_t id) { return id >= 0 && id < num_outputs; };
  if (!std::all_of(ids, ids + num_rows, inside)) return false;
  const int64_t num_groups = num_inputs / kGroupInputs;
  if (out_type == ElementType::kBFloat16) {
    unpack_rows(packed, kind, ids, num_rows, num_groups, static_cast<BFloat16*>(out));
  } else {
    unpack_rows(packed, kind, ids, num_rows, num_groups, static_cast<float*>(out));
  }
  return true;
}

}  // namespace pelton
