// Rotary embedding with AVX-512: the same roundings as the portable kernel, 16 dimensions at a time.
#include "lanes_avx512.h"
#include "rope.h"

namespace pelton {
namespace {

constexpr int kLanes = 16;

template <typename Element>
void rotate_lanes(const RopeCall& call, const Element* from, int rotary_dim, const float* cos_sin, float* rotated) {
  const int half = rotary_dim / 2;
  for (int i = 0; i < half; i += kLanes) {
    const __mmask16 mask = lane_mask(half - i);
    const __m512 first = load_lanes(from + i, mask), second = load_lanes(from + half + i, mask);
    const __m512 cosine = load_lanes(cos_sin + i, mask), sine = load_lanes(cos_sin + half + i, mask);
    const __m512 turned = _mm512_sub_ps(_mm512_mul_ps(first, cosine), _mm512_mul_ps(second, sine));
    const __m512 other = _mm512_add_ps(_mm512_mul_ps(second, cosine), _mm512_mul_ps(first, sine));
    store_lanes(rotated + i, turned, mask);
    store_lanes(rotated + half + i, other, mask);
  }
  for (int d = rotary_dim; d < call.head_dim; d += kLanes) {
    const __mmask16 mask = lane_mask(call.head_dim - d);
    store_lanes(rotated + d, load_lanes(from + d, mask), mask);
  }
}

void rotate(const RopeCall& call, const void* from, int rotary_dim, const float* cos_sin, float* rotated) {
  if (call.type == ElementType::kBFloat16) {
    rotate_lanes(call, static_cast<const BFloat16*>(from), rotary_dim, cos_sin, rotated);
  } else {
    rotate_lanes(call, static_cast<const float*>(from), rotary_dim, cos_sin, rotated);
  }
}

template <typename Element>
void convert_lanes(const RopeCall& call, const float* rotated, Element* to) {
  for (int d = 0; d < call.head_dim; d += kLanes) store_lanes(to + d, load_lanes(rotated + d));
}

// head_dim is a multiple of 16.
void convert(const RopeCall& call, const float* rotated, ElementType type, void* to) {
  if (type == ElementType::kBFloat16) {
    convert_lanes(call, rotated, static_cast<BFloat16*>(to));
  } else {
    convert_lanes(call, rotated, static_cast<float*>(to));
  }
}

}  // namespace

const RopeKernel kAvx512Rope{rotate, convert};

}  // namespace pelton
