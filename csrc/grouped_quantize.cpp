// The portable version of grouped_quantize.h, and how blocks of rows are shared out.
#include "grouped_quantize.h"

#include <algorithm>
#include <cmath>

#include "cpu_features.h"
#include "pack_blocks.h"

namespace pelton {
namespace {

constexpr float kCount = kGroupInputs;
constexpr float kSteps = 15.0f;

struct Affine {
  float scale, minimum;
};

float code(float weight, float minimum, float inverse) {
  return std::min(std::max(std::nearbyint((weight - minimum) * inverse), 0.0f), kSteps);
}

float inverse_of(float scale) { return scale > 0.0f ? 1.0f / scale : 0.0f; }

// Every operation and its order are those of the vector version.
Affine fit(const float* weights) {
  float smallest = weights[0], largest = weights[0], sum_w = 0.0f;
  for (int64_t k = 0; k < kGroupInputs; ++k) {
    smallest = std::min(smallest, weights[k]);
    largest = std::max(largest, weights[k]);
    sum_w += weights[k];
  }
  const float middle = 0.5f * (smallest + largest);
  // What is not finite shows in the sum, and then in the minimum.
  Affine best{(largest - smallest) / kSteps, smallest + (sum_w - sum_w)};
  float best_gain = -1.0f;
  for (const float range : kTrialRanges) {
    const float scale = (largest - smallest) * range / kSteps;
    const float minimum = std::fma(scale, -0.5f * kSteps, middle);
    const float inverse = inverse_of(scale);
    float sum_q = 0.0f, sum_qq = 0.0f, sum_qw = 0.0f;
    for (int64_t k = 0; k < kGroupInputs; ++k) {
      const float q = code(weights[k], minimum, inverse);
      sum_q += q;
      sum_qq = std::fma(q, q, sum_qq);
      sum_qw = std::fma(q, weights[k] - middle, sum_qw);
    }
    // About the middle, so that little cancels. What the fit takes off the sum of squares is covariance^2 / variance.
    const float centered = std::fma(-kCount, middle, sum_w);
    const float variance = std::fma(-sum_q, sum_q * (1.0f / kCount), sum_qq);
    const float covariance = std::fma(-sum_q, centered * (1.0f / kCount), sum_qw);
    const float fitted = covariance / variance;
    const float gain = covariance * fitted;
    if (gain > best_gain) {
      best_gain = gain;
      best = {fitted, std::fma(-fitted, sum_q, centered) * (1.0f / kCount) + middle};
    }
  }
  return best;
}

}  // namespace

void rotate_row_scalar(float* row, int64_t size) {
  for (int64_t first = 0; first < size; first += kRotatedInputs) rotate_scalar(row + first);
  for (int64_t k = 0; k < size; ++k) row[k] *= kRotationNorm;
}

bool grouped_quantize_block_scalar(const QuantizedBlock& block) {
  constexpr int64_t kBytes = grouped_bytes(GroupedKind::kFourBitsMinimum);
  constexpr int64_t kCodesBytes = grouped_codes_bytes(GroupedKind::kFourBitsMinimum);
  bool finite = true;
  for (int64_t g = 0; g < block.size / kGroupInputs; ++g) {
    uint8_t* group = block.panel + g * kBytes;
    for (int64_t r = block.begin; r < block.end; ++r) {
      const float* weights = block.rows + r * block.size + g * kGroupInputs;
      const Affine affine = fit(weights);
      const uint16_t halves[2] = {float_to_half(affine.scale), float_to_half(affine.minimum)};
      const float scale = half_to_float(halves[0]), minimum = half_to_float(halves[1]);
      const float inverse = inverse_of(scale);
      finite = finite && std::isfinite(scale) && std::isfinite(minimum);
      const int64_t lane = block.lane + r;
      std::memcpy(group + kCodesBytes + lane * 2, &halves[0], 2);
      std::memcpy(group + kCodesBytes + kPanelOutputs * 2 + lane * 2, &halves[1], 2);
      for (int64_t i = 0; i < 16 && finite; ++i) {
        const auto low = static_cast<uint8_t>(code(weights[i], minimum, inverse));
        const auto high = static_cast<uint8_t>(code(weights[i + 16], minimum, inverse));
        group[(i / 4 * kPanelOutputs + lane) * 4 + i % 4] = static_cast<uint8_t>(low | high << 4);
      }
    }
  }
  return finite;
}

bool grouped_quantize(const StoredRows& rows, bool rotated, int64_t first_row, int64_t num_outputs, bool gated,
                      uint8_t* packed) {
  ReadRowFunction read_row = read_row_scalar;
  RotateRow rotate_row = rotate_row_scalar;
  GroupedQuantizeBlock quantize = grouped_quantize_block_scalar;
#if defined(__x86_64__)
  if (cpu_features().avx512) {
    read_row = read_row_avx512;
    rotate_row = rotate_row_avx512;
    quantize = grouped_quantize_block_avx512;
  }
#endif
  const int64_t size = rows.num_inputs;
  const int64_t panel_bytes = size / kGroupInputs * grouped_bytes(GroupedKind::kFourBitsMinimum);
  return pack_blocks(rows.num_rows, first_row, num_outputs, gated, [&](const RowBlock& block) {
    auto* weights = scratch<float>(kBlockRows * size);
    const int64_t begin = block.place.lane % kBlockRows, end = begin + block.end - block.begin;
    std::fill(weights, weights + begin * size, 0.0f);
    std::fill(weights + end * size, weights + kBlockRows * size, 0.0f);
    for (int64_t r = begin; r < end; ++r) {
      float* row = weights + r * size;
      read_row(rows, block.begin + r - begin, row);
      if (rotated) rotate_row(row, size);
    }
    return quantize({weights, size, block.place.lane - begin, begin, end, packed + block.place.panel * panel_bytes});
  });
}

}  // namespace pelton
