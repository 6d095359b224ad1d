// Norms and activations. Rows are independent and each row is reduced in a fixed order, so a row's bits depend
// on nothing but the row. Arithmetic is fp32; results are rounded once, to the type of the output.
#pragma once
#include <cstdint>

#include "element_type.h"

namespace pelton {

// out = x / sqrt(mean(x^2) + epsilon) * weight over the last dimension of x [num_groups][num_heads][size].
struct RmsNormCall {
  const void* x;  // innermost dimension contiguous; element alignment suffices
  int64_t group_stride, head_stride;
  ElementType type;
  const int64_t* groups;  // null, or which group of x each of the num_groups of out comes from
  void* out;              // may be x itself, with the same type and strides and without `groups`
  int64_t out_group_stride, out_head_stride;
  ElementType out_type;
  const void* weight;  // [size]
  ElementType weight_type;
  float epsilon;
  int64_t num_groups, num_heads, size;
};

// out[t][i] = silu(x[t][i]) * x[t][size + i]. Rows of x and out are contiguous; out overlaps no input.
struct SiluMulCall {
  const void* x;
  int64_t x_stride;
  void* out;
  int64_t out_stride;
  ElementType type;
  int64_t num_rows, size;
};

// Rows [begin, end) of num_groups * num_heads, and of num_rows.
void rms_norm_scalar(const RmsNormCall& call, int64_t begin, int64_t end);
void silu_mul_scalar(const SiluMulCall& call, int64_t begin, int64_t end);

#if defined(__x86_64__)
void rms_norm_avx2(const RmsNormCall& call, int64_t begin, int64_t end);
void silu_mul_avx2(const SiluMulCall& call, int64_t begin, int64_t end);
void rms_norm_avx512(const RmsNormCall& call, int64_t begin, int64_t end);
void silu_mul_avx512(const SiluMulCall& call, int64_t begin, int64_t end);
#endif

}  // namespace pelton
