// The portable kernel of grouped.h, which the others equal bit for bit.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "grouped.h"
#include "linear_epilogue.h"

namespace pelton {
namespace {

template <typename X>
void quantize_row(const X* x, int64_t num_groups, int32_t offset, ActivationGroup* groups, int64_t stride) {
  for (int64_t g = 0; g < num_groups; ++g, x += kGroupInputs, groups += stride) {
    // Compared as integers, magnitudes are in order and a NaN is above all of them.
    uint32_t largest_bits = 0;
    for (int64_t k = 0; k < kGroupInputs; ++k) {
      const float value = to_float(x[k]);
      uint32_t bits;
      std::memcpy(&bits, &value, sizeof bits);
      largest_bits = std::max(largest_bits, bits & 0x7fffffffu);
    }
    float largest;
    std::memcpy(&largest, &largest_bits, sizeof largest);
    // Infinite for a largest magnitude of zero or close to it, NaN or zero where it is not finite: all become zeros.
    const float inverse = 127.0f / largest;
    const bool usable = inverse > 0.0f && std::isfinite(inverse);
    int32_t sum = 0;
    for (int64_t k = 0; k < kGroupInputs; ++k) {
      const auto q = usable ? static_cast<int32_t>(std::nearbyint(to_float(x[k]) * inverse)) : 0;
      groups->q[k] = static_cast<int8_t>(q);
      sum += q;
    }
    groups->scale = largest * (1.0f / 127.0f);
    groups->scaled_sum = groups->scale * static_cast<float>(sum);
    groups->start = -offset * sum;
  }
}

float half_at(const uint8_t* halves, int64_t index) {
  uint16_t half;
  std::memcpy(&half, halves + index * 2, sizeof half);
  return half_to_float(half);
}

// Element k of output n of a group, as an unsigned integer.
int32_t code_at(const uint8_t* group, bool eight_bits, int64_t n, int64_t k) {
  const int64_t byte = eight_bits ? k : k % 16;
  const int32_t stored = group[byte / 4 * 4 * kGroupOutputs + n * 4 + byte % 4];
  return eight_bits ? stored : k < 16 ? stored & 15 : stored >> 4;
}

}  // namespace

void quantize_row_scalar(const GroupedCall& call, int64_t row, ActivationGroup* groups, int64_t stride) {
  const int64_t num_groups = call.num_inputs / kGroupInputs;
  const int32_t offset = grouped_offset(call.kind);
  if (call.x_type == ElementType::kBFloat16) {
    const auto* x = static_cast<const BFloat16*>(call.x) + row * call.x_stride;
    quantize_row(x, num_groups, offset, groups, stride);
  } else {
    quantize_row(static_cast<const float*>(call.x) + row * call.x_stride, num_groups, offset, groups, stride);
  }
}

void grouped_tile_scalar(const GroupedCall& call, const ActivationGroup* panel, int64_t row, int64_t num_rows,
                         int64_t column) {
  const int64_t num_groups = call.num_inputs / kGroupInputs;
  const int64_t group_bytes = grouped_bytes(call.kind);
  const int64_t code_bytes = kGroupOutputs * grouped_code_bytes(call.kind);
  const bool eight_bits = call.kind == GroupedKind::kEightBits;
  const uint8_t* weight = call.weight + column / kGroupOutputs * num_groups * group_bytes;
  const int64_t num_columns = std::min(kGroupOutputs, call.num_outputs - column);
  for (int64_t r = 0; r < num_rows; ++r) {
    for (int64_t n = 0; n < num_columns; ++n) {
      float sum = 0.0f;
      for (int64_t g = 0; g < num_groups; ++g) {
        const ActivationGroup& x = panel[g * num_rows + r];
        const uint8_t* group = weight + g * group_bytes;
        int32_t dot = x.start;
        for (int64_t k = 0; k < kGroupInputs; ++k) dot += code_at(group, eight_bits, n, k) * x.q[k];
        sum = std::fma(static_cast<float>(dot), half_at(group + code_bytes, n) * x.scale, sum);
        if (call.kind == GroupedKind::kFourBitsMinimum) {
          sum = std::fma(half_at(group + code_bytes, kGroupOutputs + n), x.scaled_sum, sum);
        }
      }
      finish_scalar(call, row + r, column + n, sum);
    }
  }
}

}  // namespace pelton
