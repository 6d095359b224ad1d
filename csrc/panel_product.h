// What the products with integer weights have in common: rows of x become panels of int8 groups, weights lie in panels
// of 32 outputs, and a register tile multiplies one by the other. Here are the panels of both, and how the tiles of a
// product are shared out among threads.
#pragma once
#include <algorithm>
#include <cstdint>

#include "parallel.h"
#include "quantized_rows.h"
#include "scratch.h"

namespace pelton {

// Outputs of a panel of weights: two vectors of 16. A gated weight, gate [N][K] over up [N][K], has 16 outputs of
// gate and the same 16 of up in a panel, so that one tile holds both factors of silu(gate) * up.
constexpr int64_t kPanelOutputs = 32;
// Most rows of x that a tile takes: 7 x 2 vectors of integers and as many of floats fill the registers.
constexpr int64_t kTileRows = 7;

// Outputs of a product that a panel gives, and number of panels.
static inline int64_t panel_columns(bool gated) { return gated ? kPanelOutputs / 2 : kPanelOutputs; }
static inline int64_t count_panels(int64_t num_outputs, bool gated) {
  return (num_outputs + panel_columns(gated) - 1) / panel_columns(gated);
}

// Where row `row` of a weight lies, gate's rows before up's: panel, and lane of 32 in it.
struct PanelPlace {
  int64_t panel, lane;
};
static inline PanelPlace panel_place(int64_t row, int64_t num_outputs, bool gated) {
  if (!gated) return {row / kPanelOutputs, row % kPanelOutputs};
  const bool up = row >= num_outputs;
  const int64_t n = up ? row - num_outputs : row;
  return {n / 16, n % 16 + (up ? 16 : 0)};
}

// Rows [row, row + num_rows), quantized as `rows` [groups][num_rows], times the panel of weights of the outputs from
// `column` on. `ahead` is what is read next, to be fetched meanwhile: `ahead_lines` cache lines for each group of the
// panel, as far apart as those.
template <typename Group>
struct PanelTile {
  const Group* rows;
  int64_t row, num_rows;
  const uint8_t* panel;
  int64_t column;
  const uint8_t* ahead;
  int64_t ahead_lines;
};

struct PanelProduct {
  int64_t num_rows, num_inputs, num_groups;
  const uint8_t* weight;
  int64_t num_panels, columns;       // of a panel
  int64_t panel_bytes, group_bytes;  // of one panel, and of one group in it
};

namespace panel_product {

// The quantized rows that one task works through should stay in L2 beside the weights.
constexpr int64_t kTaskInputBytes = 512 * 1024;
// A task has up to this many panels of weights, fewer where that would leave too few tasks to share out evenly.
constexpr int64_t kMaxTaskPanels = 8;
constexpr int64_t kEnoughTasks = 24;
// Below this many multiply-adds, or elements to quantize, waking a thread takes longer than the work.
constexpr int64_t kSerialWork = 128 * 1024;
constexpr int64_t kSerialElements = 16 * 1024;
// Weights that are read only once, for few rows, are fetched this many bytes before.
constexpr int64_t kStreamAhead = 4096;

template <typename Function>
static inline void run_all(int64_t num_tasks, bool serial, const Function& function) {
  if (!serial) return run_ranges(num_tasks, function);
  for (int64_t task = 0; task < num_tasks; ++task) function(task);
}

}  // namespace panel_product

// Calls quantize(row, num_rows, Group* panel) for all rows, then tile(PanelTile<Group>) for all tiles. A panel of
// weights comes from memory for the first rows of a task; the others multiply by it in L2, and fetch the next one.
template <typename Group, typename Quantize, typename Tile>
static inline void multiply_panels(const PanelProduct& product, const Quantize& quantize, const Tile& tile) {
  using namespace panel_product;
  if (product.num_rows == 0 || product.num_panels == 0) return;
  const RowPanels rows(product.num_rows, kTileRows);
  auto* quantized = scratch<Group>(product.num_rows * product.num_groups);
  run_all(rows.count, product.num_rows * product.num_inputs < kSerialElements, [&](int64_t panel) {
    const int64_t row = rows.first_row(panel);
    quantize(row, rows.num_rows(panel), quantized + row * product.num_groups);
  });

  const int64_t tile_bytes = (rows.height + 1) * product.num_groups * static_cast<int64_t>(sizeof(Group));
  const int64_t task_tiles = std::max<int64_t>(1, kTaskInputBytes / std::max<int64_t>(tile_bytes, 1));
  const int64_t task_panels = std::clamp<int64_t>(product.num_panels / kEnoughTasks, 1, kMaxTaskPanels);
  const int64_t tasks_across = (product.num_panels + task_panels - 1) / task_panels;
  const int64_t num_tasks = tasks_across * ((rows.count + task_tiles - 1) / task_tiles);
  const int64_t work = product.num_rows * product.num_panels * kPanelOutputs * product.num_inputs;
  run_all(num_tasks, work < kSerialWork, [&](int64_t task) {
    const int64_t first_tile = task / tasks_across * task_tiles;
    const int64_t num_tiles = std::min(task_tiles, rows.count - first_tile);
    const int64_t first_panel = task % tasks_across * task_panels;
    const int64_t last_panel = std::min(first_panel + task_panels, product.num_panels);
    const int64_t group_lines = product.group_bytes / 64;
    const int64_t ahead_lines = (group_lines + num_tiles - 1) / num_tiles;
    for (int64_t panel = first_panel; panel < last_panel; ++panel) {
      const uint8_t* weights = product.weight + panel * product.panel_bytes;
      for (int64_t i = 0; i < num_tiles; ++i) {
        const int64_t row = rows.first_row(first_tile + i);
        const uint8_t* ahead = weights + (num_tiles == 1 ? kStreamAhead : product.panel_bytes + i * ahead_lines * 64);
        tile(PanelTile<Group>{quantized + row * product.num_groups, row, rows.num_rows(first_tile + i), weights,
                              panel * product.columns, ahead, ahead_lines});
      }
    }
  });
}

}  // namespace pelton
