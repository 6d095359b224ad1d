// Rows of x as int8: what the products of grouped.h and int8.h multiply by. For all instruction sets.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>

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

// Inputs that are rotated together, and what rotated ones are multiplied by so that their squares add up as before.
constexpr int64_t kRotatedInputs = 64;
constexpr float kRotationNorm = 0.25f;
// Bit i: whether input i of a block changes its sign first, so that inputs of one sign do not all add up in one place.
// Any pattern without structure does; these are the first bits of the golden ratio.
constexpr uint64_t kRotationSigns = 0x9e3779b97f4a7c15u;

static inline void change_signs(float* block) {
  for (int64_t i = 0; i < kRotatedInputs; ++i) {
    if ((kRotationSigns >> i & 1) != 0) block[i] = -block[i];
  }
}

// Element i of 64 = 16 a + 4 b + c becomes the sum over a' and c' of +-1 times element 16 a' + 4 b + c': Hadamard
// matrices of 4 over a and c.
static inline void hadamard_scalar(float* block) {
  for (const int64_t distance : {32, 16, 2, 1}) {
    for (int64_t i = 0; i < kRotatedInputs; ++i) {
      if ((i & distance) != 0) continue;
      const float low = block[i];
      const float high = block[i + distance];
      block[i] = low + high;
      block[i + distance] = low - high;
    }
  }
}

// Spreads an outlier over 16 elements: inputs of linear layers then round to int8 with a third of the error (QuaRot,
// arXiv 2404.00456, rotates whole rows). Products stay what they were where weights are rotated too.
static inline void rotate_scalar(float* block) {
  change_signs(block);
  hadamard_scalar(block);
}

// The inverse, norm and all.
static inline void unrotate_scalar(float* block) {
  hadamard_scalar(block);
  change_signs(block);
  for (int64_t i = 0; i < kRotatedInputs; ++i) block[i] *= kRotationNorm;
}

// One group, times `norm`; a NaN or an infinity makes zeros and a scale that is not finite.
template <typename Group>
static inline void quantize_group_scalar(const float* values, float norm, int32_t offset, Group* group) {
  // Compared as integers, magnitudes are in order and a NaN is above all of them.
  uint32_t largest_bits = 0;
  for (int64_t k = 0; k < Group::kSize; ++k) {
    uint32_t bits;
    std::memcpy(&bits, values + k, sizeof bits);
    largest_bits = std::max(largest_bits, bits & 0x7fffffffu);
  }
  float largest;
  std::memcpy(&largest, &largest_bits, sizeof largest);
  // Infinite for a largest magnitude of zero or close to it, NaN or zero where it is not finite: all become zeros.
  const float inverse = 127.0f / largest;
  const bool usable = inverse > 0.0f && std::isfinite(inverse);
  int32_t sum = 0;
  for (int64_t k = 0; k < Group::kSize; ++k) {
    const auto q = usable ? static_cast<int32_t>(std::nearbyint(values[k] * inverse)) : 0;
    group->q[k] = static_cast<int8_t>(q);
    sum += q;
  }
  group->scale = largest * (norm / 127.0f);
  group->scaled_sum = group->scale * static_cast<float>(sum);
  group->start = -offset * sum;
}

// Quantizes x [num_inputs] to groups[0], groups[stride], groups[2 * stride] ...; a last group, or block of those that
// are rotated together, that x does not fill is completed with zeros.
template <bool kRotated, typename X, typename Group>
static inline void quantize_row_scalar(const X* x, int64_t num_inputs, int32_t offset, Group* groups, int64_t stride) {
  constexpr int64_t kBlock = kRotated ? kRotatedInputs : Group::kSize;
  for (int64_t first = 0; first < num_inputs; first += kBlock) {
    float values[kBlock];
    for (int64_t k = 0; k < kBlock; ++k) values[k] = first + k < num_inputs ? to_float(x[first + k]) : 0.0f;
    if constexpr (kRotated) rotate_scalar(values);
    for (int64_t k = 0; k < kBlock; k += Group::kSize, groups += stride) {
      quantize_group_scalar(values + k, kRotated ? kRotationNorm : 1.0f, offset, groups);
    }
  }
}

}  // namespace pelton
