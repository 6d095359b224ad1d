// Norms and activations with AVX2.
#include "elementwise.h"
#include "lanes_avx2.h"

namespace pelton {
namespace {

template <typename X, typename Out, typename W>
void rms_norm_row(const X* x, Out* out, const W* weight, float epsilon, int64_t size) {
  __m256 squares = _mm256_setzero_ps();
  for_each_vector(size, [&](int64_t i, auto lanes) {
    const __m256 value = load_lanes(x + i, lanes);
    squares = _mm256_fmadd_ps(value, value, squares);
  });
  const __m256 mean = _mm256_set1_ps(sum_lanes(squares) / static_cast<float>(size) + epsilon);
  const __m256 scale = _mm256_div_ps(_mm256_set1_ps(1.0f), _mm256_sqrt_ps(mean));
  for_each_vector(size, [&](int64_t i, auto lanes) {
    const __m256 normalized = _mm256_mul_ps(load_lanes(x + i, lanes), scale);
    store_lanes(out + i, _mm256_mul_ps(normalized, load_lanes(weight + i, lanes)), lanes);
  });
}

template <typename X, typename Out, typename W>
void rms_norm_rows(const RmsNormCall& call, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const int64_t group = row / call.num_heads;
    const int64_t head = row % call.num_heads;
    const int64_t source = call.groups == nullptr ? group : call.groups[group];
    const X* x = static_cast<const X*>(call.x) + source * call.group_stride + head * call.head_stride;
    Out* out = static_cast<Out*>(call.out) + group * call.out_group_stride + head * call.out_head_stride;
    rms_norm_row(x, out, static_cast<const W*>(call.weight), call.epsilon, call.size);
  }
}

template <typename X, typename Out>
void rms_norm_to(const RmsNormCall& call, bool wide_weight, int64_t begin, int64_t end) {
  if (wide_weight) return rms_norm_rows<X, Out, float>(call, begin, end);
  return rms_norm_rows<X, Out, BFloat16>(call, begin, end);
}

template <typename X>
void silu_mul_rows(const SiluMulCall& call, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const X* gate = static_cast<const X*>(call.x) + row * call.x_stride;
    const X* up = gate + call.size;
    X* out = static_cast<X*>(call.out) + row * call.out_stride;
    for_each_vector(call.size, [&](int64_t i, auto lanes) {
      store_lanes(out + i, _mm256_mul_ps(silu(load_lanes(gate + i, lanes)), load_lanes(up + i, lanes)), lanes);
    });
  }
}

}  // namespace

void rms_norm_avx2(const RmsNormCall& call, int64_t begin, int64_t end) {
  const bool wide_x = call.type == ElementType::kFloat32;
  const bool wide_weight = call.weight_type == ElementType::kFloat32;
  if (call.out_type == ElementType::kFloat32) {
    if (wide_x) return rms_norm_to<float, float>(call, wide_weight, begin, end);
    return rms_norm_to<BFloat16, float>(call, wide_weight, begin, end);
  }
  if (wide_x) return rms_norm_to<float, BFloat16>(call, wide_weight, begin, end);
  return rms_norm_to<BFloat16, BFloat16>(call, wide_weight, begin, end);
}

void silu_mul_avx2(const SiluMulCall& call, int64_t begin, int64_t end) {
  call.type == ElementType::kFloat32 ? silu_mul_rows<float>(call, begin, end)
                                     : silu_mul_rows<BFloat16>(call, begin, end);
}

}  // namespace pelton
