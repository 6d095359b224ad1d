// Norms and activations: the portable kernels, the choice of kernel and the distribution over threads.
#include "elementwise.h"

#include <algorithm>
#include <cmath>

#include "cpu_features.h"
#include "module.h"
#include "parallel.h"
#include "program.h"

namespace pelton {
namespace {

// Elements below which waking a thread takes longer than the work.
constexpr int64_t kSerialElements = 64 * 1024;
// Rows are handed out in pieces of about this many elements.
constexpr int64_t kPieceElements = 16 * 1024;

template <typename X, typename Out, typename W>
void rms_norm_rows(const RmsNormCall& call, int64_t begin, int64_t end) {
  const auto* weight = static_cast<const W*>(call.weight);
  for (int64_t row = begin; row < end; ++row) {
    const int64_t group = row / call.num_heads;
    const int64_t head = row % call.num_heads;
    const int64_t source = call.groups == nullptr ? group : call.groups[group];
    const X* x = static_cast<const X*>(call.x) + source * call.group_stride + head * call.head_stride;
    Out* out = static_cast<Out*>(call.out) + group * call.out_group_stride + head * call.out_head_stride;
    float squares = 0.0f;
    for (int64_t i = 0; i < call.size; ++i) squares += to_float(x[i]) * to_float(x[i]);
    const float scale = 1.0f / std::sqrt(squares / static_cast<float>(call.size) + call.epsilon);
    for (int64_t i = 0; i < call.size; ++i) store(out + i, to_float(x[i]) * scale * to_float(weight[i]));
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
    for (int64_t i = 0; i < call.size; ++i) {
      const float value = to_float(gate[i]);
      store(out + i, value / (1.0f + std::exp(-value)) * to_float(up[i]));
    }
  }
}

template <typename Call>
void run_rows(const Call& call, void (*kernel)(const Call&, int64_t, int64_t), int64_t num_rows, int64_t row_size) {
  if (num_rows * row_size < kSerialElements) {
    kernel(call, 0, num_rows);
    return;
  }
  const int64_t piece = std::max<int64_t>(1, kPieceElements / row_size);
  const int64_t num_pieces = (num_rows + piece - 1) / piece;
  run_tasks(num_pieces, [&](int64_t i) { kernel(call, i * piece, std::min((i + 1) * piece, num_rows)); });
}

// What Python calls: addresses as integers, sizes and strides in elements, types as ElementType.

void rms_norm_binding(uintptr_t x, int64_t group_stride, int64_t head_stride, int type, uintptr_t groups,
                      uintptr_t out, int64_t out_group_stride, int64_t out_head_stride, int out_type,
                      uintptr_t weight, int weight_type, float epsilon, int64_t num_groups, int64_t num_heads,
                      int64_t size) {
  const RmsNormCall call{reinterpret_cast<const void*>(x), group_stride, head_stride, static_cast<ElementType>(type),
                         reinterpret_cast<const int64_t*>(groups), reinterpret_cast<void*>(out), out_group_stride,
                         out_head_stride, static_cast<ElementType>(out_type), reinterpret_cast<const void*>(weight),
                         static_cast<ElementType>(weight_type), epsilon, num_groups, num_heads, size};
  auto* kernel = rms_norm_scalar;
#if defined(__x86_64__)
  if (cpu_features().avx512) {
    kernel = rms_norm_avx512;
  } else if (cpu_features().avx2) {
    kernel = rms_norm_avx2;
  }
#endif
  submit([=] {
    run_rows(call, kernel, num_groups * num_heads, size);
    return true;
  });
}

void silu_mul_binding(uintptr_t x, int64_t x_stride, uintptr_t out, int64_t out_stride, int type, int64_t num_rows,
                      int64_t size) {
  const SiluMulCall call{reinterpret_cast<const void*>(x), x_stride, reinterpret_cast<void*>(out), out_stride,
                         static_cast<ElementType>(type), num_rows, size};
  auto* kernel = silu_mul_scalar;
#if defined(__x86_64__)
  if (cpu_features().avx512) {
    kernel = silu_mul_avx512;
  } else if (cpu_features().avx2) {
    kernel = silu_mul_avx2;
  }
#endif
  submit([=] {
    run_rows(call, kernel, num_rows, size);
    return true;
  });
}

}  // namespace

void rms_norm_scalar(const RmsNormCall& call, int64_t begin, int64_t end) {
  const bool wide_x = call.type == ElementType::kFloat32;
  const bool wide_weight = call.weight_type == ElementType::kFloat32;
  if (call.out_type == ElementType::kFloat32) {
    if (wide_x) return rms_norm_to<float, float>(call, wide_weight, begin, end);
    return rms_norm_to<BFloat16, float>(call, wide_weight, begin, end);
  }
  if (wide_x) return rms_norm_to<float, BFloat16>(call, wide_weight, begin, end);
  return rms_norm_to<BFloat16, BFloat16>(call, wide_weight, begin, end);
}

void silu_mul_scalar(const SiluMulCall& call, int64_t begin, int64_t end) {
  call.type == ElementType::kFloat32 ? silu_mul_rows<float>(call, begin, end)
                                     : silu_mul_rows<BFloat16>(call, begin, end);
}

void register_elementwise(nanobind::module_& m) {
  using namespace nanobind::literals;
  using Unlocked = nanobind::call_guard<nanobind::gil_scoped_release>;
  m.def("rms_norm", rms_norm_binding, "x"_a, "group_stride"_a, "head_stride"_a, "type"_a, "groups"_a, "out"_a,
        "out_group_stride"_a, "out_head_stride"_a, "out_type"_a, "weight"_a, "weight_type"_a, "epsilon"_a,
        "num_groups"_a, "num_heads"_a, "size"_a, Unlocked());
  m.def("silu_mul", silu_mul_binding, "x"_a, "x_stride"_a, "out"_a, "out_stride"_a, "type"_a, "num_rows"_a, "size"_a,
        Unlocked());
}

}  // namespace pelton
