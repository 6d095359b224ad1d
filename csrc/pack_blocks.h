// Rows of a checkpoint's matrix on their way into panels of 32 outputs, 16 at a time and by several threads.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>

#include "panel_product.h"
#include "parallel.h"
#include "scratch.h"
#include "stored_rows.h"

namespace pelton {

// Rows that one task packs: those of neighbouring lanes, half a panel.
constexpr int64_t kBlockRows = 16;

// Rows [begin, end) of a part and where the first of them goes, the others in the lanes after it.
struct RowBlock {
  int64_t begin, end;
  PanelPlace place;
};

// Calls pack_block(RowBlock) for all blocks of a part whose rows become rows [first_row, first_row + num_rows) of a
// weight, gate's before up's. Whether all calls returned true.
template <typename PackBlock>
static inline bool pack_blocks(int64_t num_rows, int64_t first_row, int64_t num_outputs, bool gated,
                               const PackBlock& pack_block) {
  std::atomic<bool> all{true};
  const auto pack_run = [&](int64_t begin, int64_t end) {
    if (begin == end) return;
    const int64_t skipped = panel_place(first_row + begin, num_outputs, gated).lane % kBlockRows;
    run_tasks((skipped + end - begin + kBlockRows - 1) / kBlockRows, [&](int64_t block) {
      const int64_t from = begin - skipped + block * kBlockRows;
      const int64_t first = std::max(from, begin);
      const RowBlock rows{first, std::min(from + kBlockRows, end), panel_place(first_row + first, num_outputs, gated)};
      if (!pack_block(rows)) all = false;
    });
  };
  const int64_t middle = gated ? std::clamp<int64_t>(num_outputs - first_row, 0, num_rows) : num_rows;
  pack_run(0, middle);
  pack_run(middle, num_rows);
  return all;
}

}  // namespace pelton
