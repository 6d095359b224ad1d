// How the tiles of panel_product.h are cut for 16 registers, and what happens to their finished fp32 sums: bias,
// silu(gate) * up of a gated weight, rounding, store. For *_avx2.cpp; `Call` is GroupedCall or Int8Call.
//
// The 32 outputs of a panel are four vectors, in pairs (0, 2) and (1, 3): of a gated weight, gate and the same outputs of
// up. A pass takes up to four rows and one pair, or up to two rows and both.
#pragma once
#include "linear_epilogue_avx2.h"
#include "panel_product.h"

namespace pelton {

inline constexpr int kPassRows = 4;

static constexpr int pairs_of_pass(int num_rows) { return num_rows <= 2 ? 2 : 1; }

struct PanelPass {
  int64_t first_row;    // of the tile
  int64_t first_pair;
  int64_t ahead_lines;  // to fetch meanwhile, for each group
};

// passes[rows - 1] computes one pass of so many rows.
template <typename Call, typename Tile>
struct PassTable {
  void (*passes[kPassRows])(const Call&, const Tile&, const PanelPass&);
};

template <typename Call, typename Tile>
static inline void run_passes(const Call& call, const Tile& tile, const PassTable<Call, Tile>& table) {
  int64_t remaining = (tile.num_rows + kPassRows - 1) / kPassRows;
  int64_t ahead_lines = tile.ahead_lines;
  for (int64_t row = 0; row < tile.num_rows; --remaining) {
    const int rows = static_cast<int>((tile.num_rows - row + remaining - 1) / remaining);
    for (int pair = 0; pair < 2; pair += pairs_of_pass(rows)) {
      table.passes[rows - 1](call, tile, {row, pair, ahead_lines});
      ahead_lines = 0;
    }
    row += rows;
  }
}

// A pair of sums of row `row`; `column` is that of the first.
template <typename Call>
static inline void store_pair(const Call& call, int64_t row, int64_t column, __m256 first, __m256 second) {
  if (!call.gated) {
    finish(call, row, column, call.num_outputs, first);
    finish(call, row, column + 16, call.num_outputs, second);
    return;
  }
  with_lanes(call.num_outputs - column, [&](auto lanes) {
    const __m256 gate = add_bias(call, column, lanes, first);
    const __m256 up = add_bias(call, call.num_outputs + column, lanes, second);
    store_result(call, row, column, lanes, _mm256_mul_ps(silu(gate), up));
  });
}

template <int kRows, typename Call, typename Tile>
static inline void store_pass(const Call& call, const Tile& tile, const PanelPass& pass,
                              const __m256 (&sums)[kRows][pairs_of_pass(kRows)][2]) {
  constexpr int kPairs = pairs_of_pass(kRows);
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int p = 0; p < kPairs; ++p) {
      store_pair(call, tile.row + pass.first_row + r, tile.column + (pass.first_pair + p) * 8, sums[r][p][0],
                 sums[r][p][1]);
    }
  }
}

}  // namespace pelton
