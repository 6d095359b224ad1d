// The element types of tensors that cross the binding, and scalar access to them.
#pragma once
#include <cstdint>
#include <cstring>

namespace pelton {

// The 8-bit types are those of KV caches, where they have scales; kFloat8 is e4m3 (arXiv 2209.05433), of which neither
// denormals nor NaNs are stored.
enum class ElementType : int { kFloat32 = 0, kBFloat16 = 1, kInt8 = 2, kFloat8 = 3 };

static inline int bytes_of(ElementType type) {
  return type == ElementType::kFloat32 ? 4 : type == ElementType::kBFloat16 ? 2 : 1;
}

static inline bool is_scaled(ElementType type) { return bytes_of(type) == 1; }

struct BFloat16 {
  uint16_t bits;
};

// Internal linkage throughout: files are compiled for different instruction sets, and the linker must not
// pick one file's copy for all.
static inline float to_float(float value) { return value; }

static inline float to_float(BFloat16 value) {
  const uint32_t bits = static_cast<uint32_t>(value.bits) << 16;
  float result;
  std::memcpy(&result, &bits, sizeof result);
  return result;
}

// An IEEE float16, which is exact in fp32.
static inline float half_to_float(uint16_t half) {
  const uint32_t exponent = half >> 10 & 31u;
  const uint32_t mantissa = half & 0x3ffu;
  float magnitude;
  if (exponent == 0) {
    magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  } else {
    const uint32_t bits = (exponent == 31 ? 255u : exponent + 112u) << 23 | mantissa << 13;
    std::memcpy(&magnitude, &bits, sizeof magnitude);
  }
  return (half & 0x8000u) != 0 ? -magnitude : magnitude;
}

// Rounds to nearest even; what is too large becomes infinite.
static inline uint16_t float_to_half(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {  // a denormal half: the addition rounds to multiples of 2^-24
    float shifted;
    std::memcpy(&shifted, &magnitude, sizeof shifted);
    shifted += 0.5f;
    uint32_t shifted_bits;
    std::memcpy(&shifted_bits, &shifted, sizeof shifted_bits);
    return static_cast<uint16_t>(sign | (shifted_bits - 0x3f000000u));
  }
  const uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

static inline void store(float* to, float value) { *to = value; }

// Rounds to nearest even; NaNs become the quiet NaN.
static inline void store(BFloat16* to, float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  to->bits = value == value ? static_cast<uint16_t>(rounded) : uint16_t{0x7fc0};
}

}  // namespace pelton
