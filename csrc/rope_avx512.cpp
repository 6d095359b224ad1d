// Rotary embedding with AVX-512: the same roundings as the portable kernel, 16 dimensions at a time.
#include "lanes_avx512.h"
#include "rope.h"

namespace pelton {
namespace {

constexpr int kLanes = 16;

// Dimensions i to i + 16 of each head's first half, and those of the second half that turn with them. `lanes` is
// AllLanes or a mask.
template <typename From, typename To, typename Lanes>
void rotate_dimensions(const RopeCall& call, const HeadsView& heads, const From* from, const float* cos_sin, int half,
                       int i, Lanes lanes, To* to) {
  const __m512 cosine = load_lanes(cos_sin + i, lanes), sine = load_lanes(cos_sin + half + i, lanes);
  for (int head = 0; head < heads.num_heads; ++head, from += heads.head_stride, to += call.head_dim) {
    const __m512 first = load_lanes(from + i, lanes), second = load_lanes(from + half + i, lanes);
    const __m512 turned = _mm512_sub_ps(_mm512_mul_ps(first, cosine), _mm512_mul_ps(second, sine));
    const __m512 other = _mm512_add_ps(_mm512_mul_ps(second, cosine), _mm512_mul_ps(first, sine));
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

// Rounds to nearest even, as in rope.cpp.
__m128i to_float8(__m512 values) {
  const __m512 magnitude = _mm512_abs_ps(values);
  const __mmask16 normal = _mm512_cmp_ps_mask(magnitude, _mm512_set1_ps(kSmallestFloat8), _CMP_GE_OQ);
  const __m512i bits = _mm512_castps_si512(magnitude);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 20), _mm512_set1_epi32(1));
  const __m512i half = _mm512_set1_epi32((1 << 19) - 1);
  const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_add_epi32(half, odd)), 20);
  const __m512i sign = _mm512_srli_epi32(_mm512_and_si512(_mm512_castps_si512(values), _mm512_set1_epi32(1 << 31)), 24);
  const __m512i code = _mm512_or_si512(_mm512_sub_epi32(rounded, _mm512_set1_epi32(120 << 3)), sign);
  return _mm512_cvtepi32_epi8(_mm512_maskz_mov_epi32(normal, code));
}

__m128i to_int8(__m512 values) {
  // What is no number becomes the least integer, whose lowest byte is 0.
  return _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(values));
}

// head_dim is a multiple of 16.
float quantize(const float* head, int head_dim, ElementType type, void* to) {
  __m512 largest = _mm512_setzero_ps();
  __mmask16 nan = 0;
  for (int d = 0; d < head_dim; d += kLanes) {
    const __m512 values = load_lanes(head + d);
    nan |= _mm512_cmp_ps_mask(values, values, _CMP_UNORD_Q);
    largest = _mm512_max_ps(largest, _mm512_abs_ps(values));
  }
  const float magnitude = nan != 0 ? __builtin_nanf("") : _mm512_reduce_max_ps(largest);
  const float scale = magnitude / (type == ElementType::kInt8 ? kLargestInt8 : kLargestFloat8);
  const __m512 inverse = _mm512_set1_ps(scale < kSmallestScale ? 0.0f : 1.0f / scale);
  for (int d = 0; d < head_dim; d += kLanes) {
    const __m512 scaled = _mm512_mul_ps(load_lanes(head + d), inverse);
    const __m128i codes = type == ElementType::kInt8 ? to_int8(scaled) : to_float8(scaled);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(static_cast<std::byte*>(to) + d), codes);
  }
  return scale;
}

}  // namespace

const RopeKernel kAvx512Rope{rotate, quantize};

}  // namespace pelton
