// Weights of a checkpoint to the layout of int8.h, and its rows back to plain numbers.
#include "int8_pack.h"

#include <algorithm>
#include <cmath>

#include "cpu_features.h"
#include "pack_blocks.h"

namespace pelton {
namespace {

struct Kernels {
  ReadRowFunction read_row = read_row_scalar;
  Int8QuantizeWeights quantize = int8_quantize_weights_scalar;
  Int8Transpose transpose = int8_transpose_scalar;
};

Kernels choose_kernels() {
#if defined(__x86_64__)
  if (cpu_features().avx512) return {read_row_avx512, int8_quantize_weights_avx512, int8_transpose_avx512};
#endif
  return {};
}

bool pack_block(const Kernels& kernels, const StoredRows& part, const RowBlock& block, uint8_t* packed) {
  const int64_t padded = int8_num_groups(part.num_inputs) * kInt8GroupInputs;
  auto* weights = scratch<float>(padded);
  auto* codes = scratch<uint8_t>(padded * kBlockRows);
  uint8_t* panel = packed + block.place.panel * int8_panel_bytes(part.num_inputs);
  const int64_t num_rows = block.end - block.begin;
  bool finite = true;
  for (int64_t r = 0; r < num_rows; ++r) {
    kernels.read_row(part, block.begin + r, weights);
    std::fill(weights + part.num_inputs, weights + padded, 0.0f);
    const float scale = kernels.quantize(weights, padded, codes + r * padded);
    std::memcpy(panel + int8_code_bytes(part.num_inputs) + (block.place.lane + r) * 4, &scale, sizeof scale);
    finite = finite && std::isfinite(scale);
  }
  if (num_rows == kBlockRows) {
    kernels.transpose(codes, padded, panel + int8_code_offset(block.place.lane, 0));
    return finite;
  }
  for (int64_t r = 0; r < num_rows; ++r) {
    for (int64_t k = 0; k < padded; k += 4) {
      std::memcpy(panel + int8_code_offset(block.place.lane + r, k), codes + r * padded + k, 4);
    }
  }
  return finite;
}

template <typename Element>
void unpack_row(const uint8_t* packed, const PanelPlace& place, int64_t num_inputs, Element* out) {
  const uint8_t* panel = packed + place.panel * int8_panel_bytes(num_inputs);
  float scale;
  std::memcpy(&scale, panel + int8_code_bytes(num_inputs) + place.lane * 4, sizeof scale);
  for (int64_t first = 0; first < num_inputs; first += kRotatedInputs) {
    float block[kRotatedInputs];
    for (int64_t k = 0; k < kRotatedInputs; ++k) {
      block[k] = scale * static_cast<float>(panel[int8_code_offset(place.lane, first + k)] - kInt8Offset);
    }
    unrotate_scalar(block);
    const int64_t count = std::min(kRotatedInputs, num_inputs - first);
    for (int64_t k = 0; k < count; ++k) store(out + first + k, block[k]);
  }
}

}  // namespace

int64_t int8_packed_bytes(int64_t num_outputs, int64_t num_inputs, bool gated) {
  return count_panels(num_outputs, gated) * int8_panel_bytes(num_inputs);
}

bool int8_pack(const StoredRows& rows, int64_t first_row, int64_t num_outputs, bool gated, uint8_t* packed) {
  const Kernels kernels = choose_kernels();
  return pack_blocks(rows.num_rows, first_row, num_outputs, gated,
                     [&](const RowBlock& block) { return pack_block(kernels, rows, block, packed); });
}

bool int8_unpack_rows(const uint8_t* packed, const int64_t* ids, int64_t num_rows, int64_t num_outputs,
                      int64_t num_inputs, bool gated, void* out, ElementType out_type) {
  const int64_t limit = gated ? 2 * num_outputs : num_outputs;
  const auto inside = [limit](int64_t id) { return id >= 0 && id < limit; };
  if (!std::all_of(ids, ids + num_rows, inside)) return false;
  for (int64_t row = 0; row < num_rows; ++row) {
    const PanelPlace place = panel_place(ids[row], num_outputs, gated);
    if (out_type == ElementType::kBFloat16) {
      unpack_row(packed, place, num_inputs, static_cast<BFloat16*>(out) + row * num_inputs);
    } else {
      unpack_row(packed, place, num_inputs, static_cast<float*>(out) + row * num_inputs);
    }
  }
  return true;
}

float int8_quantize_weights_scalar(float* weights, int64_t size, uint8_t* codes) {
  float largest = 0.0f;
  for (int64_t k = 0; k < size; ++k) {
    if (k % kRotatedInputs == 0) rotate_scalar(weights + k);
    const float magnitude = std::fabs(weights[k]);
    if (!(magnitude <= largest)) largest = magnitude;  // a NaN too, which then stays
  }
  const float inverse = 127.0f / largest;
  const bool usable = inverse > 0.0f && std::isfinite(inverse);
  for (int64_t k = 0; k < size; ++k) {
    const auto q = usable ? static_cast<int32_t>(std::nearbyint(weights[k] * inverse)) : 0;
    codes[k] = static_cast<uint8_t>(q + kInt8Offset);
  }
  return largest * (kRotationNorm / 127.0f);
}

void int8_transpose_scalar(const uint8_t* codes, int64_t padded, uint8_t* lanes) {
  for (int64_t k = 0; k < padded; k += 4) {
    for (int64_t lane = 0; lane < kBlockRows; ++lane) {
      std::memcpy(lanes + int8_code_offset(lane, k), codes + lane * padded + k, 4);
    }
  }
}

}  // namespace pelton
