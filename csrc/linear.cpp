// Dense products: the portable kernel, packing, the choice of kernel and the distribution over threads.
#include "linear.h"

#include <algorithm>

#include "cpu_features.h"
#include "linear_epilogue.h"
#include "module.h"
#include "parallel.h"
#include "program.h"

namespace pelton {
namespace {

// The rows of x that one task works through should stay in L2 beside a panel of weights.
constexpr int64_t kTaskInputBytes = 512 * 1024;
// Rows of a task come in multiples of 96: whole tiles of the AVX-512 (12) and AMX (32) kernels.
constexpr int64_t kTaskRowMultiple = 96;
// Below this many multiply-adds, waking a thread takes longer than the product.
constexpr int64_t kSerialWork = 64 * 1024;

template <typename X, typename W, int kUnit>
void scalar_tile(const LinearCall& call, const LinearTile& tile) {
  const auto* x = static_cast<const X*>(call.x);
  const auto* weight = static_cast<const W*>(call.weight);
  const int64_t block_size = padded_inputs(call.weight_type, call.num_inputs) * kBlockColumns;
  for (int64_t m = tile.row_begin; m < tile.row_end; ++m) {
    for (int64_t n = tile.column_begin; n < tile.column_end; n += kBlockColumns) {
      const W* block = weight + n / kBlockColumns * block_size;
      float sums[kBlockColumns] = {};
      for (int64_t k = 0; k < call.num_inputs; ++k) {
        const float value = to_float(x[m * call.x_stride + k]);
        const W* column = block + k / kUnit * kUnit * kBlockColumns + k % kUnit;
        for (int64_t j = 0; j < kBlockColumns; ++j) sums[j] += value * to_float(column[j * kUnit]);
      }
      const int64_t count = std::min(kBlockColumns, tile.column_end - n);
      for (int64_t j = 0; j < count; ++j) finish_scalar(call, m, n + j, sums[j]);
    }
  }
}

struct Kernel {
  LinearFunction function;
  int64_t task_columns;  // of one panel of weights
};

Kernel choose_kernel(const LinearCall& call) {
#if defined(__x86_64__)
  const CpuFeatures& has = cpu_features();
  const bool bf16 = call.x_type == ElementType::kBFloat16 && call.weight_type == ElementType::kBFloat16;
  if (bf16 && has.amx_bf16) return {linear_amx_bf16, 32};
  const int64_t columns = call.num_rows <= 6 ? 64 : 32;
  if (bf16 && has.avx512_bf16) return {linear_avx512_bf16, columns};
  if (has.avx512) return {linear_avx512, columns};
  if (has.avx2) return {linear_avx2, 64};
#endif
  return {linear_scalar, 64};
}

int64_t rows_per_task(const LinearCall& call) {
  const int64_t row_bytes = call.num_inputs * (call.x_type == ElementType::kBFloat16 ? 2 : 4);
  const int64_t fitting = std::max(kTaskRowMultiple, kTaskInputBytes / std::max<int64_t>(row_bytes, 1));
  const int64_t num_chunks = (call.num_rows + fitting - 1) / fitting;
  const int64_t rows = (call.num_rows + num_chunks - 1) / num_chunks;
  return (rows + kTaskRowMultiple - 1) / kTaskRowMultiple * kTaskRowMultiple;
}

// Tasks are handed out one by one: a thread that loses its core for a while delays one task, not half of them.
void linear(const LinearCall& call) {
  if (call.num_rows == 0 || call.num_outputs == 0) return;
  const Kernel kernel = choose_kernel(call);
  const int64_t task_rows = rows_per_task(call);
  const int64_t num_panels = (call.num_outputs + kernel.task_columns - 1) / kernel.task_columns;
  const int64_t num_tasks = num_panels * ((call.num_rows + task_rows - 1) / task_rows);
  const auto run_task = [&](int64_t task) {
    const int64_t row = task / num_panels * task_rows;
    const int64_t column = task % num_panels * kernel.task_columns;
    kernel.function(call, {row, std::min(row + task_rows, call.num_rows), column,
                           std::min(column + kernel.task_columns, call.num_outputs)});
  };
  if (call.num_rows * call.num_outputs * call.num_inputs < kSerialWork) {
    for (int64_t task = 0; task < num_tasks; ++task) run_task(task);
  } else {
    run_ranges(num_tasks, run_task);
  }
}

// Packing moves 32-bit units, a float or a pair of bf16: a block is the transpose of 16 rows of units.
// A last pair that the row fills by half is completed with zero.
void transpose_scalar(const void* source, int64_t stride_bytes, int64_t num_rows, int64_t num_units, uint32_t* packed) {
  for (int64_t n = 0; n < num_rows; ++n) {
    const char* row = static_cast<const char*>(source) + n * stride_bytes;
    for (int64_t unit = 0; unit < num_units; ++unit) {
      std::memcpy(packed + unit * kBlockColumns + n, row + unit * 4, sizeof(uint32_t));
    }
  }
}

// [num_rows up to 16][num_units] -> [num_units][16]
void transpose(const void* source, int64_t stride_bytes, int64_t num_rows, int64_t num_units, uint32_t* packed) {
  int64_t done = 0;
#if defined(__x86_64__)
  const CpuFeatures& has = cpu_features();
  if (num_rows == kBlockColumns && has.avx2) {
    done = num_units / 16 * 16;
    (has.avx512 ? transpose_avx512 : transpose_avx2)(source, stride_bytes, done, packed);
  }
#endif
  transpose_scalar(static_cast<const char*>(source) + done * 4, stride_bytes, num_rows, num_units - done,
                   packed + done * kBlockColumns);
}

template <typename Element>
void pack_block(const Element* source, int64_t stride, int64_t num_rows, int64_t num_inputs, int64_t num_units,
                uint32_t* packed) {
  constexpr int64_t kPerUnit = sizeof(uint32_t) / sizeof(Element);
  const int64_t whole = num_inputs / kPerUnit;
  if (num_rows < kBlockColumns || whole < num_units) std::memset(packed, 0, num_units * kBlockColumns * 4);
  transpose(source, stride * static_cast<int64_t>(sizeof(Element)), num_rows, whole, packed);
  if (whole * kPerUnit < num_inputs) {
    for (int64_t n = 0; n < num_rows; ++n) {
      std::memcpy(packed + whole * kBlockColumns + n, source + n * stride + whole * kPerUnit, sizeof(Element));
    }
  }
}

template <typename Element>
void pack(const Element* source, int64_t stride, int64_t num_outputs, int64_t num_inputs, int64_t num_units,
          uint32_t* packed) {
  const int64_t num_blocks = (num_outputs + kBlockColumns - 1) / kBlockColumns;
  run_tasks(num_blocks, [&](int64_t block) {
    const int64_t n = block * kBlockColumns;
    pack_block(source + n * stride, stride, std::min(kBlockColumns, num_outputs - n), num_inputs, num_units,
               packed + block * num_units * kBlockColumns);
  });
}

template <typename Element, typename Out>
void unpack_rows(const uint32_t* packed, const int64_t* ids, int64_t num_rows, int64_t num_inputs, int64_t num_units,
                 Out* out) {
  constexpr int64_t kPerUnit = sizeof(uint32_t) / sizeof(Element);
  for (int64_t row = 0; row < num_rows; ++row) {
    const uint32_t* block = packed + ids[row] / kBlockColumns * num_units * kBlockColumns + ids[row] % kBlockColumns;
    Out* to = out + row * num_inputs;
    for (int64_t k = 0; k < num_inputs; ++k) {
      Element element;
      std::memcpy(&element, reinterpret_cast<const Element*>(block + k / kPerUnit * kBlockColumns) + k % kPerUnit,
                  sizeof(Element));
      store(to + k, to_float(element));
    }
  }
}

template <typename Element>
void unpack_rows(const uint32_t* packed, const int64_t* ids, int64_t num_rows, int64_t num_inputs, int64_t num_units,
                 void* out, ElementType out_type) {
  if (out_type == ElementType::kBFloat16) {
    unpack_rows<Element>(packed, ids, num_rows, num_inputs, num_units, static_cast<BFloat16*>(out));
  } else {
    unpack_rows<Element>(packed, ids, num_rows, num_inputs, num_units, static_cast<float*>(out));
  }
}

// What Python calls: addresses as integers, sizes and strides in elements, types as ElementType.

void linear_binding(uintptr_t x, int64_t x_stride, int x_type, uintptr_t weight, int weight_type, uintptr_t bias,
                    int bias_type, uintptr_t out, int64_t out_stride, int out_type, bool accumulate, int64_t num_rows,
                    int64_t num_outputs, int64_t num_inputs) {
  const LinearCall call{reinterpret_cast<const void*>(x), x_stride, static_cast<ElementType>(x_type),
                        reinterpret_cast<const void*>(weight), static_cast<ElementType>(weight_type),
                        reinterpret_cast<const void*>(bias), static_cast<ElementType>(bias_type),
                        reinterpret_cast<void*>(out), out_stride, static_cast<ElementType>(out_type), accumulate,
                        num_rows, num_outputs, num_inputs};
  submit([call] {
    linear(call);
    return true;
  });
}

void pack_binding(uintptr_t source, int64_t stride, int type, int64_t num_outputs, int64_t num_inputs,
                  uintptr_t packed) {
  auto* to = reinterpret_cast<uint32_t*>(packed);
  if (static_cast<ElementType>(type) == ElementType::kBFloat16) {
    const int64_t num_units = padded_inputs(ElementType::kBFloat16, num_inputs) / 2;
    pack(reinterpret_cast<const uint16_t*>(source), stride, num_outputs, num_inputs, num_units, to);
  } else {
    pack(reinterpret_cast<const uint32_t*>(source), stride, num_outputs, num_inputs, num_inputs, to);
  }
}

// False, and nothing is written, if an id is not in [0, num_outputs).
bool unpack_rows_binding(uintptr_t packed, int type, uintptr_t ids, int64_t num_rows, int64_t num_outputs,
                         int64_t num_inputs, uintptr_t out, int out_type) {
  const auto* from = reinterpret_cast<const uint32_t*>(packed);
  const auto* rows = reinterpret_cast<const int64_t*>(ids);
  return submit([=] {
    const auto inside = [num_outputs](int64_t id) { return id >= 0 && id < num_outputs; };
    if (!std::all_of(rows, rows + num_rows, inside)) return false;
    if (static_cast<ElementType>(type) == ElementType::kBFloat16) {
      const int64_t num_units = padded_inputs(ElementType::kBFloat16, num_inputs) / 2;
      unpack_rows<BFloat16>(from, rows, num_rows, num_inputs, num_units, reinterpret_cast<void*>(out),
                            static_cast<ElementType>(out_type));
    } else {
      unpack_rows<float>(from, rows, num_rows, num_inputs, num_inputs, reinterpret_cast<void*>(out),
                         static_cast<ElementType>(out_type));
    }
    return true;
  });
}

int64_t packed_bytes(int type, int64_t num_outputs, int64_t num_inputs) {
  const auto element_type = static_cast<ElementType>(type);
  const int64_t num_blocks = (num_outputs + kBlockColumns - 1) / kBlockColumns;
  return num_blocks * kBlockColumns * padded_inputs(element_type, num_inputs) *
         (element_type == ElementType::kBFloat16 ? 2 : 4);
}

}  // namespace

void linear_scalar(const LinearCall& call, const LinearTile& tile) {
  const bool bf16_x = call.x_type == ElementType::kBFloat16;
  if (call.weight_type == ElementType::kFloat32) {
    scalar_tile<float, float, 1>(call, tile);
  } else if (bf16_x) {
    scalar_tile<BFloat16, BFloat16, 2>(call, tile);
  } else {
    scalar_tile<float, BFloat16, 2>(call, tile);
  }
}

void register_linear(nanobind::module_& m) {
  using namespace nanobind::literals;
  using Unlocked = nanobind::call_guard<nanobind::gil_scoped_release>;
  m.def("linear", linear_binding, "x"_a, "x_stride"_a, "x_type"_a, "weight"_a, "weight_type"_a, "bias"_a,
        "bias_type"_a, "out"_a, "out_stride"_a, "out_type"_a, "accumulate"_a, "num_rows"_a, "num_outputs"_a,
        "num_inputs"_a, Unlocked());
  m.def("linear_packed_bytes", packed_bytes, "type"_a, "num_outputs"_a, "num_inputs"_a);
  m.def("linear_pack", pack_binding, "source"_a, "stride"_a, "type"_a, "num_outputs"_a, "num_inputs"_a, "packed"_a,
        Unlocked());
  m.def("linear_unpack_rows", unpack_rows_binding, "packed"_a, "type"_a, "ids"_a, "num_rows"_a, "num_outputs"_a,
        "num_inputs"_a, "out"_a, "out_type"_a, Unlocked());
}

}  // namespace pelton
