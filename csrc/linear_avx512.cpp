// Dense products with AVX-512: fp32 multiply-adds, and BF16 dot products of pairs.
#include <utility>

#include "linear.h"
#include "linear_epilogue_avx512.h"
#include "transpose_avx512.h"

namespace pelton {
namespace {

// Register tiles: up to 12 rows x 2 vectors of 16 outputs, or 6 x 4. Both keep 24 sums in registers, enough
// independent chains to hide the latency of a multiply-add.
constexpr int kMaxRows = 12;
constexpr int kWideRows = 6;


// One step of k for fp32 weights.
template <typename X>
struct Float32Weights {
  using Input = X;
  using Weight = float;
  static constexpr int kUnit = 1;

  template <int kRows, int kVectors>
  static inline void step(const X* x, int64_t x_stride, const float* weight, int64_t block_size,
                          __m512 (&sums)[kRows][kVectors]) {
    __m512 columns[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) columns[v] = _mm512_load_ps(weight + v * block_size);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      const __m512 value = _mm512_set1_ps(to_float(x[r * x_stride]));
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[r][v] = _mm512_fmadd_ps(value, columns[v], sums[r][v]);
    }
  }
};

// One pair of k for bf16 weights, multiplied in fp32. `paired` is false for the last k of an odd number.
template <typename X>
struct WidenedWeights {
  using Input = X;
  using Weight = BFloat16;
  static constexpr int kUnit = 2;

  template <int kRows, int kVectors>
  static inline void step(const X* x, int64_t x_stride, const BFloat16* weight, int64_t block_size,
                          __m512 (&sums)[kRows][kVectors], bool paired = true) {
    __m512 even[kVectors];
    __m512 odd[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const __m512i pairs = _mm512_load_si512(weight + v * block_size);
      even[v] = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
      odd[v] = _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
    }
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      const __m512 first = _mm512_set1_ps(to_float(x[r * x_stride]));
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[r][v] = _mm512_fmadd_ps(first, even[v], sums[r][v]);
      if (!paired) continue;
      const __m512 second = _mm512_set1_ps(to_float(x[r * x_stride + 1]));
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[r][v] = _mm512_fmadd_ps(second, odd[v], sums[r][v]);
    }
  }
};

// One pair of k for bf16 weights, by the dot product instruction.
struct PairedProducts {
  using Input = BFloat16;
  using Weight = BFloat16;
  static constexpr int kUnit = 2;

  template <int kRows, int kVectors>
  static inline void step(const BFloat16* x, int64_t x_stride, const BFloat16* weight, int64_t block_size,
                          __m512 (&sums)[kRows][kVectors], bool paired = true) {
    __m512i columns[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) columns[v] = _mm512_load_si512(weight + v * block_size);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      uint32_t bits = 0;
      std::memcpy(&bits, x + r * x_stride, paired ? 4 : 2);
      const auto pair = reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(bits)));
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        sums[r][v] = _mm512_dpbf16_ps(sums[r][v], pair, reinterpret_cast<__m512bh>(columns[v]));
      }
    }
  }
};

template <typename Product, int kRows, int kVectors>
void register_tile(const LinearCall& call, int64_t row, int64_t column, int64_t column_end) {
  using X = typename Product::Input;
  using W = typename Product::Weight;
  constexpr int kUnit = Product::kUnit;
  const int64_t block_size = padded_inputs(call.weight_type, call.num_inputs) * kBlockColumns;
  const X* __restrict x = static_cast<const X*>(call.x) + row * call.x_stride;
  const W* __restrict weight = static_cast<const W*>(call.weight) + column / kBlockColumns * block_size;
  __m512 sums[kRows][kVectors];
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sums[r][v] = _mm512_setzero_ps();
  }
  const int64_t whole = call.num_inputs / kUnit * kUnit;
  for (int64_t k = 0; k < whole; k += kUnit) {
    Product::template step<kRows, kVectors>(x + k, call.x_stride, weight + k * kBlockColumns, block_size, sums);
  }
  if constexpr (kUnit == 2) {
    if (whole < call.num_inputs) {
      Product::template step<kRows, kVectors>(x + whole, call.x_stride, weight + whole * kBlockColumns, block_size,
                                              sums, false);
    }
  }
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    const int64_t first = column + v * kBlockColumns;
    const __mmask16 mask = lane_mask(column_end - first);
    const __m512 bias = load_bias(call, first, mask);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) finish(call, row + r, first, mask, sums[r][v], bias);
  }
}

using RegisterTile = void (*)(const LinearCall&, int64_t, int64_t, int64_t);

// tiles[rows - 1]
template <typename Product, int kVectors, int... kRows>
constexpr auto tile_table(std::integer_sequence<int, kRows...>) {
  struct Table {
    RegisterTile tiles[sizeof...(kRows)];
  };
  return Table{{register_tile<Product, kRows + 1, kVectors>...}};
}

template <typename Product>
void run_tile(const LinearCall& call, const LinearTile& tile) {
  static constexpr auto kFourVectors = tile_table<Product, 4>(std::make_integer_sequence<int, kWideRows>());
  static constexpr auto kTwoVectors = tile_table<Product, 2>(std::make_integer_sequence<int, kMaxRows>());
  static constexpr auto kOneVector = tile_table<Product, 1>(std::make_integer_sequence<int, kMaxRows>());
  const int64_t num_rows = tile.row_end - tile.row_begin;
  int64_t column = tile.column_begin;
  while (column < tile.column_end) {
    const int64_t num_blocks = (tile.column_end - column + kBlockColumns - 1) / kBlockColumns;
    const int64_t vectors = num_blocks >= 4 && num_rows <= kWideRows ? 4 : num_blocks >= 2 ? 2 : 1;
    const RegisterTile* tiles = vectors == 4 ? kFourVectors.tiles : vectors == 2 ? kTwoVectors.tiles : kOneVector.tiles;
    // Rows are shared out evenly: 13 become 7 + 6, since a tile of one row would run at memory latency.
    int64_t remaining_tiles = (num_rows + kMaxRows - 1) / kMaxRows;
    for (int64_t row = tile.row_begin; row < tile.row_end; --remaining_tiles) {
      const int64_t rows = (tile.row_end - row + remaining_tiles - 1) / remaining_tiles;
      tiles[rows - 1](call, row, column, tile.column_end);
      row += rows;
    }
    column += vectors * kBlockColumns;
  }
}

}  // namespace

void transpose_avx512(const void* source, int64_t stride_bytes, int64_t num_units, uint32_t* packed) {
  for (int64_t unit = 0; unit < num_units; unit += 16) {
    __m512i rows[16];
    const char* from = static_cast<const char*>(source) + unit * 4;
#pragma GCC unroll 16
    for (int r = 0; r < 16; ++r) rows[r] = _mm512_loadu_si512(from + r * stride_bytes);
    transpose_square(rows);
    // Past the caches: packed weights are read much later, and whole lines need no reading first.
#pragma GCC unroll 16
    for (int r = 0; r < 16; ++r) _mm512_stream_si512(reinterpret_cast<__m512i*>(packed + (unit + r) * 16), rows[r]);
  }
  _mm_sfence();
}

void linear_avx512(const LinearCall& call, const LinearTile& tile) {
  if (call.weight_type == ElementType::kFloat32) {
    run_tile<Float32Weights<float>>(call, tile);
  } else if (call.x_type == ElementType::kFloat32) {
    run_tile<WidenedWeights<float>>(call, tile);
  } else {
    run_tile<WidenedWeights<BFloat16>>(call, tile);
  }
}

void linear_avx512_bf16(const LinearCall& call, const LinearTile& tile) { run_tile<PairedProducts>(call, tile); }

}  // namespace pelton
