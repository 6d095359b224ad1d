// The portable reader of stored_rows.h.
#include "stored_rows.h"

namespace pelton {
namespace {

template <typename Element>
Element element_at(const uint8_t* row, int64_t index) {
  Element value;
  std::memcpy(&value, row + index * static_cast<int64_t>(sizeof value), sizeof value);
  return value;
}

float half_at(const uint8_t* row, int64_t index) { return half_to_float(element_at<uint16_t>(row, index)); }

void read_blocks(const uint8_t* block, StoredType type, int64_t num_inputs, float* out) {
  const bool eight_bits = type == StoredType::kQ8_0;
  const bool has_minimum = type == StoredType::kQ4_1;
  const int64_t header = has_minimum ? 4 : 2;
  const int64_t block_bytes = header + (eight_bits ? 32 : 16);
  for (int64_t k = 0; k < num_inputs; k += 32, block += block_bytes, out += 32) {
    const float scale = half_at(block, 0);
    const float minimum = has_minimum ? half_at(block, 1) : 0.0f;
    const int32_t offset = type == StoredType::kQ4_0 ? 8 : 0;
    for (int64_t i = 0; i < (eight_bits ? 32 : 16); ++i) {
      const uint8_t code = block[header + i];
      if (eight_bits) {
        out[i] = scale * static_cast<float>(static_cast<int8_t>(code));
      } else {
        out[i] = scale * static_cast<float>((code & 15) - offset) + minimum;
        out[i + 16] = scale * static_cast<float>((code >> 4) - offset) + minimum;
      }
    }
  }
}

}  // namespace

void read_row_scalar(const StoredRows& rows, int64_t row, float* out) {
  const uint8_t* from = rows.data + row * rows.row_bytes;
  for (int64_t k = 0; k < rows.num_inputs; ++k) {
    switch (rows.type) {
      case StoredType::kFloat32:
        out[k] = element_at<float>(from, k);
        break;
      case StoredType::kBFloat16:
        out[k] = to_float(element_at<BFloat16>(from, k));
        break;
      case StoredType::kFloat16:
        out[k] = half_at(from, k);
        break;
      default:
        return read_blocks(from, rows.type, rows.num_inputs, out);
    }
  }
}

}  // namespace pelton
