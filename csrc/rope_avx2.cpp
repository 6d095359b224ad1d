// Rotary embedding with AVX2: the same roundings as the portable kernel, eight dimensions at a time.
#include "lanes_avx2.h"
#include "rope.h"

namespace pelton {
namespace {

// Dimensions i to i + 8 of each head's first half, and those of the second half that turn with them. `lanes` is
// AllLanes or FirstLanes.
template <typename From, typename To, typename Lanes>
void rotate_dimensions(const RopeCall& call, const HeadsView& heads, const From* from, const float* cos_sin, int half,
                       int i, Lanes lanes, To* to) {
  const __m256 cosine = load_lanes(cos_sin + i, lanes), sine = load_lanes(cos_sin + half + i, lanes);
  for (int head = 0; head < heads.num_heads; ++head, from += heads.head_stride, to += call.head_dim) {
    const __m256 first = load_lanes(from + i, lanes), second = load_lanes(from + half + i, lanes);
    const __m256 turned = _mm256_sub_ps(_mm256_mul_ps(first, cosine), _mm256_mul_ps(second, sine));
    const __m256 other = _mm256_add_ps(_mm256_mul_ps(second, cosine), _mm256_mul_ps(first, sine));
    store_lanes(to + i, turned, lanes);
    store_lanes(to + half + i, other, lanes);
  }
}

template <typename From, typename To>
void rotate_heads(const RopeCall& call, const HeadsView& heads, int64_t token, int rotary_dim, To* to) {
  const auto* from = reinterpret_cast<const From*>(heads_at(call, heads, token));
  if (rotary_dim > 0) {
    const float* cos_sin = call.cos_sin + call.positions[token] * rotary_dim;
    for_each_vector(rotary_dim / 2, [&](int64_t i, auto lanes) {
      rotate_dimensions(call, heads, from, cos_sin, rotary_dim / 2, static_cast<int>(i), lanes, to);
    });
  }
  for (int head = 0; head < heads.num_heads; ++head, from += heads.head_stride, to += call.head_dim) {
    for_each_vector(call.head_dim - rotary_dim, [&](int64_t i, auto lanes) {
      store_lanes(to + rotary_dim + i, load_lanes(from + rotary_dim + i, lanes), lanes);
    });
  }
}

void rotate(const RopeCall& call, const HeadsView& heads, int64_t token, int rotary_dim, ElementType type, void* to) {
  const bool from_bf16 = call.type == ElementType::kBFloat16, to_bf16 = type == ElementType::kBFloat16;
  if (from_bf16 && to_bf16) {
    rotate_heads<BFloat16>(call, heads, token, rotary_dim, static_cast<BFloat16*>(to));
  } else if (from_bf16) {
    rotate_heads<BFloat16>(call, heads, token, rotary_dim, static_cast<float*>(to));
  } else if (to_bf16) {
    rotate_heads<float>(call, heads, token, rotary_dim, static_cast<BFloat16*>(to));
  } else {
    rotate_heads<float>(call, heads, token, rotary_dim, static_cast<float*>(to));
  }
}

// Rounding is a small part of the call.
float quantize(const float* head, int head_dim, ElementType type, void* to) {
  return kPortableRope.quantize(head, head_dim, type, to);
}

}  // namespace

const RopeKernel kAvx2Rope{rotate, quantize};

}  // namespace pelton
