// Grouped products: quantization of x, the choice of kernel, the distribution over threads, the binding.
#include "grouped.h"

#include <algorithm>
#include <memory>

#include "cpu_features.h"
#include "grouped_pack.h"
#include "module.h"
#include "parallel.h"
#include "program.h"

namespace pelton {
namespace {

// The quantized rows that one task works through should stay in L2 beside the weights.
constexpr int64_t kTaskInputBytes = 512 * 1024;
// A task has up to this many times 16 outputs, fewer where that would leave too few tasks to share out evenly.
constexpr int64_t kMaxTaskBlocks = 4;
constexpr int64_t kEnoughTasks = 32;
// Below this many multiply-adds, or elements to quantize, waking a thread takes longer than the work.
constexpr int64_t kSerialWork = 64 * 1024;
constexpr int64_t kSerialElements = 16 * 1024;

// Rows in panels of nearly equal height: 13 become 7 + 6, since a tile of one row would run at memory latency.
struct Panels {
  explicit Panels(int64_t rows)
      : count((rows + kMaxPanelRows - 1) / kMaxPanelRows), height(rows / count), num_higher(rows % count) {}

  int64_t first_row(int64_t panel) const { return panel * height + std::min(panel, num_higher); }
  int64_t num_rows(int64_t panel) const { return height + (panel < num_higher ? 1 : 0); }

  int64_t count;
  int64_t height;
  int64_t num_higher;
};

template <typename Function>
void run_all(int64_t num_tasks, bool serial, const Function& function) {
  if (!serial) return run_tasks(num_tasks, function);
  for (int64_t task = 0; task < num_tasks; ++task) function(task);
}

void grouped_linear(const GroupedCall& call) {
  if (call.num_rows == 0 || call.num_outputs == 0) return;
  QuantizeFunction quantize = quantize_row_scalar;
  GroupedTileFunction tile = grouped_tile_scalar;
#if defined(__x86_64__)
  if (cpu_features().avx512_vnni) {
    quantize = quantize_row_vnni;
    tile = grouped_tile_vnni;
  }
#endif
  const int64_t num_groups = call.num_inputs / kGroupInputs;
  const Panels panels(call.num_rows);
  const auto quantized = std::make_unique_for_overwrite<ActivationGroup[]>(call.num_rows * num_groups);
  run_all(panels.count, call.num_rows * call.num_inputs < kSerialElements, [&](int64_t panel) {
    const int64_t row = panels.first_row(panel), num_rows = panels.num_rows(panel);
    ActivationGroup* groups = quantized.get() + row * num_groups;
    for (int64_t r = 0; r < num_rows; ++r) quantize(call, row + r, groups + r, num_rows);
  });

  const int64_t panel_bytes = (panels.height + 1) * num_groups * static_cast<int64_t>(sizeof(ActivationGroup));
  const int64_t task_panels = std::max<int64_t>(1, kTaskInputBytes / std::max<int64_t>(panel_bytes, 1));
  const int64_t num_blocks = (call.num_outputs + kGroupOutputs - 1) / kGroupOutputs;
  const int64_t task_blocks = std::clamp<int64_t>(num_blocks / kEnoughTasks, 1, kMaxTaskBlocks);
  const int64_t tasks_across = (num_blocks + task_blocks - 1) / task_blocks;
  const int64_t num_tasks = tasks_across * ((panels.count + task_panels - 1) / task_panels);
  run_all(num_tasks, call.num_rows * call.num_outputs * call.num_inputs < kSerialWork, [&](int64_t task) {
    const int64_t first_panel = task / tasks_across * task_panels;
    const int64_t last_panel = std::min(first_panel + task_panels, panels.count);
    const int64_t first_block = task % tasks_across * task_blocks;
    const int64_t last_block = std::min(first_block + task_blocks, num_blocks);
    for (int64_t block = first_block; block < last_block; ++block) {
      for (int64_t panel = first_panel; panel < last_panel; ++panel) {
        const int64_t row = panels.first_row(panel);
        tile(call, quantized.get() + row * num_groups, row, panels.num_rows(panel), block * kGroupOutputs);
      }
    }
  });
}

// What Python calls: addresses as integers, sizes and strides in elements, types as ElementType and GroupedKind.

void linear_binding(uintptr_t x, int64_t x_stride, int x_type, uintptr_t weight, int kind, uintptr_t bias,
                    int bias_type, uintptr_t out, int64_t out_stride, int out_type, bool accumulate, int64_t num_rows,
                    int64_t num_outputs, int64_t num_inputs) {
  const GroupedCall call{reinterpret_cast<const void*>(x), x_stride, static_cast<ElementType>(x_type),
                         reinterpret_cast<const uint8_t*>(weight), static_cast<GroupedKind>(kind),
                         reinterpret_cast<const void*>(bias), static_cast<ElementType>(bias_type),
                         reinterpret_cast<void*>(out), out_stride, static_cast<ElementType>(out_type), accumulate,
                         num_rows, num_outputs, num_inputs};
  submit([call] {
    grouped_linear(call);
    return true;
  });
}

int64_t packed_bytes_binding(int kind, int64_t num_outputs, int64_t num_inputs) {
  return grouped_packed_bytes(static_cast<GroupedKind>(kind), num_outputs, num_inputs);
}

void pack_binding(uintptr_t blocks, int kind, int64_t num_rows, int64_t num_inputs, int64_t first_output,
                  uintptr_t packed) {
  grouped_pack(reinterpret_cast<const uint8_t*>(blocks), static_cast<GroupedKind>(kind), num_rows, num_inputs,
               first_output, reinterpret_cast<uint8_t*>(packed));
}

bool unpack_rows_binding(uintptr_t packed, int kind, uintptr_t ids, int64_t num_rows, int64_t num_outputs,
                         int64_t num_inputs, uintptr_t out, int out_type) {
  return submit([=] {
    return grouped_unpack_rows(reinterpret_cast<const uint8_t*>(packed), static_cast<GroupedKind>(kind),
                               reinterpret_cast<const int64_t*>(ids), num_rows, num_outputs, num_inputs,
                               reinterpret_cast<void*>(out), static_cast<ElementType>(out_type));
  });
}

}  // namespace

void register_grouped(nanobind::module_& m) {
  using namespace nanobind::literals;
  using Unlocked = nanobind::call_guard<nanobind::gil_scoped_release>;
  m.def("grouped_linear", linear_binding, "x"_a, "x_stride"_a, "x_type"_a, "weight"_a, "kind"_a, "bias"_a,
        "bias_type"_a, "out"_a, "out_stride"_a, "out_type"_a, "accumulate"_a, "num_rows"_a, "num_outputs"_a, "num_inputs"_a,
        Unlocked());
  m.def("grouped_packed_bytes", packed_bytes_binding, "kind"_a, "num_outputs"_a, "num_inputs"_a);
  m.def("grouped_pack", pack_binding, "blocks"_a, "kind"_a, "num_rows"_a, "num_inputs"_a, "first_output"_a, "packed"_a,
        Unlocked());
  m.def("grouped_unpack_rows", unpack_rows_binding, "packed"_a, "kind"_a, "ids"_a, "num_rows"_a, "num_outputs"_a,
        "num_inputs"_a, "out"_a, "out_type"_a, Unlocked());
}

}  // namespace pelton
