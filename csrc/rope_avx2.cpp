// Rotary embedding with AVX2: the same roundings as the portable kernel, eight dimensions at a time.
#include "lanes_avx2.h"
#include "rope.h"

namespace pelton {
namespace {

template <typename Element>
void rotate_lanes(const RopeCall& call, const Element* from, int rotary_dim, const float* cos_sin, float* rotated) {
  const int half = rotary_dim / 2;
  for_each_vector(half, [&](int64_t i, auto lanes) {
    const __m256 first = load_lanes(from + i, lanes), second = load_lanes(from + half + i, lanes);
    const __m256 cosine = load_lanes(cos_sin + i, lanes), sine = load_lanes(cos_sin + half + i, lanes);
    const __m256 turned = _mm256_sub_ps(_mm256_mul_ps(first, cosine), _mm256_mul_ps(second, sine));
    const __m256 other = _mm256_add_ps(_mm256_mul_ps(second, cosine), _mm256_mul_ps(first, sine));
    store_lanes(rotated + i, turned, lanes);
    store_lanes(rotated + half + i, other, lanes);
  });
  for_each_vector(call.head_dim - rotary_dim, [&](int64_t i, auto lanes) {
    store_lanes(rotated + rotary_dim + i, load_lanes(from + rotary_dim + i, lanes), lanes);
  });
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
  for (int d = 0; d < call.head_dim; d += 8) store_lanes(to + d, load_lanes(rotated + d));
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

const RopeKernel kAvx2Rope{rotate, convert};

}  // namespace pelton
