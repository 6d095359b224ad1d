// Rows of x as int8: what the products of grouped.h and int8.h multiply by. For all instruction sets.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "element_type.h"

namespace pelton {

// Neighbouring elements of a row of x, as int8 times (largest magnitude / 127). A group with a value that is not
// finite has a scale that is not finite and zeros.
template <int64_t kInputs>
struct ActivationGroup {
  static constexpr int64_t kSize = kInputs;
  int8_t q[kInputs];
  float scale;
  float scaled_sum;  // scale * sum of q: multiplies a weight's minimum
  int32_t start;     // -offset * sum of q: undoes the offset of unsigned weights
};

// Rows in panels of nearly equal height, each taken by a register tile: with 12 at most, 13 become 7 + 6, since a
// tile of one row would run at memory latency.
struct RowPanels {
  RowPanels(int64_t rows, int64_t highest)
      : count((rows + highest - 1) / highest), height(rows / count), num_higher(rows % count) {}

  int64_t first_row(int64_t panel) const { return panel * height + std::min(panel, num_higher); }
  int64_t num_rows(int64_t panel) const { return height + (panel < num_higher ? 1 : 0); }

  int64_t count;
  int64_t height;
  int64_t num_higher;
};

// Quantizes x [num_inputs] to groups[0], groups[stride], groups[2 * stride] ...; a last group that x does not fill
// is completed with zeros.
template <typename X, typename Group>
static inline void quantize_row_scalar(const X* x, int64_t num_inputs, int32_t offset, Group* groups, int64_t stride) {
  for (int64_t first = 0; first < num_inputs; first += Group::kSize, groups += stride) {
    const int64_t count = std::min(Group::kSize, num_inputs - first);
    // Compared as integers, magnitudes are in order and a NaN is above all of them.
    uint32_t largest_bits = 0;
    for (int64_t k = 0; k < count; ++k) {
      const float value = to_float(x[first + k]);
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
    for (int64_t k = 0; k < Group::kSize; ++k) {
      const bool used = usable && k < count;
      const auto q = used ? static_cast<int32_t>(std::nearbyint(to_float(x[first + k]) * inverse)) : 0;
      groups->q[k] = static_cast<int8_t>(q);
      sum += q;
    }
    groups->scale = largest * (1.0f / 127.0f);
    groups->scaled_sum = groups->scale * static_cast<float>(sum);
    groups->start = -offset * sum;
  }
}

}  // namespace pelton
