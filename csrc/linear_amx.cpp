// Dense products of bf16 with AMX tiles: 32 rows x 32 outputs at a time (Intel SDM volume 1, chapter 18).
#include <cstring>

#include "linear.h"
#include "linear_epilogue_avx512.h"
#include "tiles_amx.h"

namespace pelton {
namespace {

constexpr int64_t kTileRows = 16;
constexpr int64_t kTileInputs = 32;
constexpr int64_t kTileElements = 16 * kTileInputs;  // of a tile of weights

// Tiles 0 to 3 hold sums (top left, top right, bottom left, bottom right), 4 and 5 rows of x (top, bottom),
// 6 and 7 weights (left, right). Time goes with the rows of a tile, so remainders get smaller tiles.
void configure(int64_t top_rows, int64_t bottom_rows) {
  TileConfig config;
  for (int tile = 0; tile < 8; ++tile) config.row_bytes[tile] = 64;
  config.rows[0] = config.rows[1] = config.rows[4] = static_cast<uint8_t>(top_rows);
  config.rows[2] = config.rows[3] = config.rows[5] = static_cast<uint8_t>(bottom_rows > 0 ? bottom_rows : top_rows);
  config.rows[6] = config.rows[7] = 16;
  publish();
  _tile_loadconfig(&config);
}

struct TileOperands {
  const BFloat16* x;
  int64_t x_stride;     // elements
  const BFloat16* left;  // 16 outputs x 32 inputs, then the next 32 inputs
  const BFloat16* right;
};

// Adds num_steps times 32 inputs to the sums. Loads stand between products: together they would stall them.
inline void accumulate_32_rows(const TileOperands& operands, int64_t num_steps) {
  const BFloat16* top = operands.x;
  const BFloat16* bottom = operands.x + kTileRows * operands.x_stride;
  const BFloat16* left = operands.left;
  const BFloat16* right = operands.right;
  const int64_t stride = operands.x_stride * static_cast<int64_t>(sizeof(BFloat16));
  for (int64_t step = 0; step < num_steps; ++step) {
    _tile_loadd(6, left, 64);
    _tile_loadd(4, top, stride);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, right, 64);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, bottom, stride);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
    top += kTileInputs;
    bottom += kTileInputs;
    left += kTileElements;
    right += kTileElements;
  }
}

inline void accumulate_16_rows(const TileOperands& operands, int64_t num_steps) {
  const BFloat16* top = operands.x;
  const BFloat16* left = operands.left;
  const BFloat16* right = operands.right;
  const int64_t stride = operands.x_stride * static_cast<int64_t>(sizeof(BFloat16));
  for (int64_t step = 0; step < num_steps; ++step) {
    _tile_loadd(4, top, stride);
    _tile_loadd(6, left, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, right, 64);
    _tile_dpbf16ps(1, 4, 7);
    top += kTileInputs;
    left += kTileElements;
    right += kTileElements;
  }
}

inline void accumulate(const TileOperands& operands, int64_t num_steps, bool two_tiles_of_rows) {
  if (two_tiles_of_rows) {
    accumulate_32_rows(operands, num_steps);
  } else {
    accumulate_16_rows(operands, num_steps);
  }
}

// The last num_inputs % 32 inputs of up to 32 rows, zero padded: weights are padded too, but what stands
// beyond a row of x may be NaN, or no memory at all.
struct alignas(64) InputTail {
  BFloat16 values[2 * kTileRows][kTileInputs];

  void copy(const BFloat16* x, int64_t x_stride, int64_t num_rows, int64_t count) {
    std::memset(values, 0, sizeof values);
    for (int64_t row = 0; row < num_rows; ++row) std::memcpy(values[row], x + row * x_stride, count * sizeof(BFloat16));
    publish();
  }
};

// Sums of up to 32 rows x 32 outputs, through memory to the output.
void write_out(const LinearCall& call, int64_t row, int64_t num_rows, int64_t column, int64_t column_end) {
  alignas(64) float sums[2 * kTileRows][2 * kBlockColumns];
  _tile_stored(0, sums[0], sizeof sums[0]);
  _tile_stored(1, sums[0] + kBlockColumns, sizeof sums[0]);
  if (num_rows > kTileRows) {
    _tile_stored(2, sums[kTileRows], sizeof sums[0]);
    _tile_stored(3, sums[kTileRows] + kBlockColumns, sizeof sums[0]);
  }
  publish();
  for (int64_t first = column; first < column_end; first += kBlockColumns) {
    const __mmask16 mask = lane_mask(column_end - first);
    const __m512 bias = load_bias(call, first, mask);
    for (int64_t r = 0; r < num_rows; ++r) {
      finish(call, row + r, first, mask, _mm512_load_ps(sums[r] + first - column), bias);
    }
  }
}

// Up to 32 rows x 32 outputs; the configuration must fit num_rows.
void product_tile(const LinearCall& call, int64_t row, int64_t num_rows, int64_t column, int64_t column_end) {
  const int64_t block_size = padded_inputs(ElementType::kBFloat16, call.num_inputs) * kBlockColumns;
  const BFloat16* x = static_cast<const BFloat16*>(call.x) + row * call.x_stride;
  const BFloat16* left = static_cast<const BFloat16*>(call.weight) + column / kBlockColumns * block_size;
  // Without a right half the left one is computed twice.
  const BFloat16* right = column + kBlockColumns < column_end ? left + block_size : left;
  const int64_t num_steps = call.num_inputs / kTileInputs;
  const int64_t tail = call.num_inputs % kTileInputs;
  const bool two_tiles_of_rows = num_rows > kTileRows;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  accumulate({x, call.x_stride, left, right}, num_steps, two_tiles_of_rows);
  if (tail > 0) {
    InputTail last;
    last.copy(x + num_steps * kTileInputs, call.x_stride, num_rows, tail);
    accumulate({last.values[0], kTileInputs, left + num_steps * kTileElements, right + num_steps * kTileElements}, 1,
               two_tiles_of_rows);
  }
  write_out(call, row, num_rows, column, column_end);
}

}  // namespace

void linear_amx_bf16(const LinearCall& call, const LinearTile& tile) {
  const int64_t whole_end = tile.row_begin + (tile.row_end - tile.row_begin) / 32 * 32;
  constexpr int64_t kColumns = 2 * kBlockColumns;
  if (whole_end > tile.row_begin) configure(kTileRows, kTileRows);
  for (int64_t column = tile.column_begin; column < tile.column_end; column += kColumns) {
    const int64_t column_end = column + kColumns < tile.column_end ? column + kColumns : tile.column_end;
    for (int64_t row = tile.row_begin; row < whole_end; row += 32) product_tile(call, row, 32, column, column_end);
  }
  const int64_t remainder = tile.row_end - whole_end;
  if (remainder > 0) {
    const int64_t top_rows = remainder < kTileRows ? remainder : kTileRows;
    configure(top_rows, remainder - top_rows);
    for (int64_t column = tile.column_begin; column < tile.column_end; column += kColumns) {
      const int64_t column_end = column + kColumns < tile.column_end ? column + kColumns : tile.column_end;
      product_tile(call, whole_end, remainder, column, column_end);
    }
  }
  _tile_release();
}

}  // namespace pelton
