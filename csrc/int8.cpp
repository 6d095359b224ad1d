// Int8 products: quantization of x, the choice of kernel, the distribution over threads, the binding.
#include "int8.h"

#include <algorithm>

#include "cpu_features.h"
#include "int8_pack.h"
#include "module.h"
#include "parallel.h"
#include "program.h"
#include "scratch.h"

namespace pelton {
namespace {

// The quantized rows that one task works through should stay in L2 beside the weights.
constexpr int64_t kTaskInputBytes = 512 * 1024;
// A task has up to this many panels of weights, fewer where that would leave too few tasks to share out evenly.
constexpr int64_t kMaxTaskPanels = 8;
constexpr int64_t kEnoughTasks = 24;
// Below this many multiply-adds, or elements to quantize, waking a thread takes longer than the work.
constexpr int64_t kSerialWork = 128 * 1024;
constexpr int64_t kSerialElements = 16 * 1024;
// Of a group of a panel.
constexpr int64_t kGroupLines = kInt8GroupInputs * kInt8PanelOutputs / 64;
// With one row panel a group of weights is read once, and fetched this many bytes before.
constexpr int64_t kStreamAhead = 4096;

template <typename Function>
void run_all(int64_t num_tasks, bool serial, const Function& function) {
  if (!serial) return run_tasks(num_tasks, function);
  for (int64_t task = 0; task < num_tasks; ++task) function(task);
}

struct Kernels {
  Int8QuantizeFunction quantize = int8_quantize_scalar;
  Int8TileFunction tile = int8_tile_scalar;
};

Kernels choose_kernels() {
#if defined(__x86_64__)
  if (cpu_features().avx512_vnni) return {int8_quantize_vnni, int8_tile_vnni};
#endif
  return {};
}

// Panels of weights [first_panel, last_panel) times row panels [first_rows, last_rows): each panel of weights is read
// from memory for the first rows, while the others multiply by it in L2 and fetch the panel after it.
void run_block(const Int8Call& call, Int8TileFunction tile, const Int8Group* quantized, const RowPanels& rows,
               int64_t first_rows, int64_t last_rows, int64_t first_panel, int64_t last_panel) {
  const int64_t num_groups = int8_num_groups(call.num_inputs);
  const int64_t panel_bytes = int8_panel_bytes(call.num_inputs);
  const int64_t num_tiles = last_rows - first_rows;
  const int64_t ahead_lines = (kGroupLines + num_tiles - 1) / num_tiles;
  for (int64_t panel = first_panel; panel < last_panel; ++panel) {
    const uint8_t* weights = call.weight + panel * panel_bytes;
    for (int64_t i = 0; i < num_tiles; ++i) {
      const int64_t row = rows.first_row(first_rows + i);
      const uint8_t* ahead = num_tiles == 1 ? weights + kStreamAhead : weights + panel_bytes + i * ahead_lines * 64;
      tile(call, {quantized + row * num_groups, row, rows.num_rows(first_rows + i), panel, ahead, ahead_lines});
    }
  }
}

void int8_linear(const Int8Call& call) {
  if (call.num_rows == 0 || call.num_outputs == 0) return;
  const Kernels kernels = choose_kernels();
  const int64_t num_groups = int8_num_groups(call.num_inputs);
  const RowPanels rows(call.num_rows, kInt8TileRows);
  auto* quantized = scratch<Int8Group>(call.num_rows * num_groups);
  run_all(rows.count, call.num_rows * call.num_inputs < kSerialElements, [&](int64_t panel) {
    const int64_t row = rows.first_row(panel);
    kernels.quantize(call, row, rows.num_rows(panel), quantized + row * num_groups);
  });

  const int64_t row_bytes = (rows.height + 1) * num_groups * static_cast<int64_t>(sizeof(Int8Group));
  const int64_t task_rows = std::max<int64_t>(1, kTaskInputBytes / std::max<int64_t>(row_bytes, 1));
  const int64_t num_panels = int8_num_panels(call.num_outputs, call.gated);
  const int64_t task_panels = std::clamp<int64_t>(num_panels / kEnoughTasks, 1, kMaxTaskPanels);
  const int64_t tasks_across = (num_panels + task_panels - 1) / task_panels;
  const int64_t num_tasks = tasks_across * ((rows.count + task_rows - 1) / task_rows);
  run_all(num_tasks, call.num_rows * num_panels * kInt8PanelOutputs * call.num_inputs < kSerialWork, [&](int64_t task) {
    const int64_t first_rows = task / tasks_across * task_rows;
    const int64_t first_panel = task % tasks_across * task_panels;
    run_block(call, kernels.tile, quantized, rows, first_rows, std::min(first_rows + task_rows, rows.count),
              first_panel, std::min(first_panel + task_panels, num_panels));
  });
}

// What Python calls: addresses as integers, sizes and strides in elements, types as ElementType and StoredType.

void linear_binding(uintptr_t x, int64_t x_stride, int x_type, uintptr_t weight, bool gated, uintptr_t bias,
                    int bias_type, uintptr_t out, int64_t out_stride, int out_type, bool accumulate, int64_t num_rows,
                    int64_t num_outputs, int64_t num_inputs) {
  const Int8Call call{reinterpret_cast<const void*>(x), x_stride, static_cast<ElementType>(x_type),
                      reinterpret_cast<const uint8_t*>(weight), gated, reinterpret_cast<const void*>(bias),
                      static_cast<ElementType>(bias_type), reinterpret_cast<void*>(out), out_stride,
                      static_cast<ElementType>(out_type), accumulate, num_rows, num_outputs, num_inputs};
  submit([call] {
    int8_linear(call);
    return true;
  });
}

bool pack_binding(uintptr_t rows, int64_t row_bytes, int type, int64_t num_rows, int64_t num_inputs, int64_t first_row,
                  int64_t num_outputs, bool gated, uintptr_t packed) {
  const StoredRows stored{reinterpret_cast<const uint8_t*>(rows), row_bytes, static_cast<StoredType>(type), num_rows,
                          num_inputs};
  return int8_pack(stored, first_row, num_outputs, gated, reinterpret_cast<uint8_t*>(packed));
}

bool unpack_rows_binding(uintptr_t packed, uintptr_t ids, int64_t num_rows, int64_t num_outputs, int64_t num_inputs,
                         bool gated, uintptr_t out, int out_type) {
  return submit([=] {
    return int8_unpack_rows(reinterpret_cast<const uint8_t*>(packed), reinterpret_cast<const int64_t*>(ids), num_rows,
                            num_outputs, num_inputs, gated, reinterpret_cast<void*>(out),
                            static_cast<ElementType>(out_type));
  });
}

}  // namespace

void register_int8(nanobind::module_& m) {
  using namespace nanobind::literals;
  using Unlocked = nanobind::call_guard<nanobind::gil_scoped_release>;
  m.def("int8_linear", linear_binding, "x"_a, "x_stride"_a, "x_type"_a, "weight"_a, "gated"_a, "bias"_a, "bias_type"_a,
        "out"_a, "out_stride"_a, "out_type"_a, "accumulate"_a, "num_rows"_a, "num_outputs"_a, "num_inputs"_a, Unlocked());
  m.def("int8_packed_bytes", int8_packed_bytes, "num_outputs"_a, "num_inputs"_a, "gated"_a);
  m.def("int8_pack", pack_binding, "rows"_a, "row_bytes"_a, "type"_a, "num_rows"_a, "num_inputs"_a, "first_row"_a,
        "num_outputs"_a, "gated"_a, "packed"_a, Unlocked());
  m.def("int8_unpack_rows", unpack_rows_binding, "packed"_a, "ids"_a, "num_rows"_a, "num_outputs"_a, "num_inputs"_a,
        "gated"_a, "out"_a, "out_type"_a, Unlocked());
}

}  // namespace pelton
