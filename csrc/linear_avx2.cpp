// Dense products with AVX2, multiplied in fp32 whatever the types: the bits of the AVX-512 kernels for fp32 arithmetic.
#include <utility>

#include "linear.h"
#include "linear_epilogue_avx2.h"

namespace pelton {
namespace {

// Register tiles of rows x blocks of 16 outputs, a block being two vectors: 2 x 2, 1 x 4, or one block and as many rows
// as leave registers for the operands. Those of few rows have eight chains, which hide the latency of a multiply-add.
constexpr int kVectorsPerBlock = 2;

inline __m256 broadcast(const float* x) { return _mm256_broadcast_ss(x); }

// A pair of bf16 values as fp32, the first of each pair or the second.
enum class Half { kFirst, kSecond };

template <Half kHalf>
inline __m256 widen_half(__m256i pairs) {
  return _mm256_castsi256_ps(kHalf == Half::kFirst
                                 ? _mm256_slli_epi32(pairs, 16)
                                 : _mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
}

// Element 0 or 1 of x in all lanes. `paired` is false where there is no element 1.
template <Half kHalf>
inline __m256 broadcast_half(const float* x, bool) {
  return broadcast(x + (kHalf == Half::kFirst ? 0 : 1));
}

template <Half kHalf>
inline __m256 broadcast_half(const BFloat16* x, bool paired) {
  uint32_t bits = 0;
  std::memcpy(&bits, x, paired ? 4 : 2);
  return widen_half<kHalf>(_mm256_set1_epi32(static_cast<int>(bits)));
}

// One step of k for fp32 weights.
struct Float32Weights {
  using Input = float;
  using Weight = float;
  static constexpr int kUnit = 1;
  static constexpr int kMaxRows = 6;

  template <int kRows, int kVectors>
  static inline void step(const float* x, int64_t x_stride, const float* weight, int64_t block_size,
                          __m256 (&sums)[kRows][kVectors], bool = true) {
    __m256 columns[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) columns[v] = _mm256_load_ps(weight + v / 2 * block_size + v % 2 * 8);
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const __m256 value = broadcast(x + r * x_stride);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sums[r][v] = _mm256_fmadd_ps(value, columns[v], sums[r][v]);
    }
  }
};

// One pair of k for bf16 weights. `paired` is false for the last k of an odd number.
template <typename X>
struct WidenedWeights {
  using Input = X;
  using Weight = BFloat16;
  static constexpr int kUnit = 2;
  static constexpr int kMaxRows = 5;

  template <int kRows, int kVectors>
  static inline void step(const X* x, int64_t x_stride, const BFloat16* weight, int64_t block_size,
                          __m256 (&sums)[kRows][kVectors], bool paired = true) {
    if constexpr (kRows <= 3) {
      whole_step(x, x_stride, weight, block_size, sums, paired);
    } else {
      half_step<Half::kFirst>(x, x_stride, weight, block_size, sums, paired);
      // What the second half reads again it must not keep: that would not fit in the registers beside the sums.
      asm volatile("" ::: "memory");
      if (paired) half_step<Half::kSecond>(x, x_stride, weight, block_size, sums, paired);
    }
  }

 private:
  template <int kRows, int kVectors>
  static inline void whole_step(const X* x, int64_t x_stride, const BFloat16* weight, int64_t block_size,
                                __m256 (&sums)[kRows][kVectors], bool paired) {
    __m256 first[kRows], second[kRows];
#pragma GCC unroll 3
    for (int r = 0; r < kRows; ++r) {
      first[r] = broadcast_half<Half::kFirst>(x + r * x_stride, paired);
      second[r] = paired ? broadcast_half<Half::kSecond>(x + r * x_stride, paired) : _mm256_setzero_ps();
    }
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const __m256i pairs = load_pairs(weight, block_size, v);
#pragma GCC unroll 3
      for (int r = 0; r < kRows; ++r) {
        sums[r][v] = _mm256_fmadd_ps(first[r], widen_half<Half::kFirst>(pairs), sums[r][v]);
        if (paired) sums[r][v] = _mm256_fmadd_ps(second[r], widen_half<Half::kSecond>(pairs), sums[r][v]);
      }
    }
  }

  template <Half kHalf, int kRows, int kVectors>
  static inline void half_step(const X* x, int64_t x_stride, const BFloat16* weight, int64_t block_size,
                               __m256 (&sums)[kRows][kVectors], bool paired) {
    __m256 columns[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) columns[v] = widen_half<kHalf>(load_pairs(weight, block_size, v));
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const __m256 value = broadcast_half<kHalf>(x + r * x_stride, paired);
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) sums[r][v] = _mm256_fmadd_ps(value, columns[v], sums[r][v]);
    }
  }

  static inline __m256i load_pairs(const BFloat16* weight, int64_t block_size, int v) {
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(weight + v / 2 * block_size + v % 2 * 16));
  }
};

template <typename Product, int kRows, int kBlocks>
void register_tile(const LinearCall& call, int64_t row, int64_t column, int64_t column_end) {
  using X = typename Product::Input;
  using W = typename Product::Weight;
  constexpr int kVectors = kBlocks * kVectorsPerBlock;
  constexpr int kUnit = Product::kUnit;
  const int64_t x_stride = call.x_stride;
  const int64_t block_size = padded_inputs(call.weight_type, call.num_inputs) * kBlockColumns;
  const X* __restrict x = static_cast<const X*>(call.x) + row * x_stride;
  const W* __restrict weight = static_cast<const W*>(call.weight) + column / kBlockColumns * block_size;
  __m256 sums[kRows][kVectors];
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) sums[r][v] = _mm256_setzero_ps();
  }
  const int64_t whole = call.num_inputs / kUnit * kUnit;
  for (int64_t k = 0; k < whole; k += kUnit) {
    Product::template step<kRows, kVectors>(x + k, x_stride, weight + k * kBlockColumns, block_size, sums);
  }
  if (whole < call.num_inputs) {
    Product::template step<kRows, kVectors>(x + whole, x_stride, weight + whole * kBlockColumns, block_size, sums,
                                            false);
  }
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) finish(call, row + r, column + v * 8, column_end, sums[r][v]);
  }
}

using RegisterTile = void (*)(const LinearCall&, int64_t, int64_t, int64_t);

// tiles[rows - 1], of one block
template <typename Product, int... kRows>
constexpr auto tile_table(std::integer_sequence<int, kRows...>) {
  struct Table {
    RegisterTile tiles[sizeof...(kRows)];
  };
  return Table{{register_tile<Product, kRows + 1, 1>...}};
}

// How many blocks a tile of so many rows takes.
int64_t tile_blocks(int64_t num_rows, int64_t num_blocks) {
  if (num_rows == 1 && num_blocks >= 4) return 4;
  return num_rows <= 2 && num_blocks >= 2 ? 2 : 1;
}

template <typename Product>
void run_tile(const LinearCall& call, const LinearTile& tile) {
  constexpr int kMaxRows = Product::kMaxRows;
  static constexpr auto kOneBlock = tile_table<Product>(std::make_integer_sequence<int, kMaxRows>());
  const int64_t num_rows = tile.row_end - tile.row_begin;
  int64_t column = tile.column_begin;
  while (column < tile.column_end) {
    const int64_t blocks = tile_blocks(num_rows, (tile.column_end - column + kBlockColumns - 1) / kBlockColumns);
    if (blocks == 4) {
      register_tile<Product, 1, 4>(call, tile.row_begin, column, tile.column_end);
    } else if (blocks == 2) {
      const auto two_blocks = num_rows == 1 ? register_tile<Product, 1, 2> : register_tile<Product, 2, 2>;
      two_blocks(call, tile.row_begin, column, tile.column_end);
    } else {
      // Rows are shared out evenly: 7 become 4 + 3, since a tile of one row would run at the latency of a multiply-add.
      int64_t remaining_tiles = (num_rows + kMaxRows - 1) / kMaxRows;
      for (int64_t row = tile.row_begin; row < tile.row_end; --remaining_tiles) {
        const int64_t rows = (tile.row_end - row + remaining_tiles - 1) / remaining_tiles;
        kOneBlock.tiles[rows - 1](call, row, column, tile.column_end);
        row += rows;
      }
    }
    column += blocks * kBlockColumns;
  }
}

// rows[r][c] -> rows[c][r], 8 x 8 units of 32 bits.
inline void transpose_square(__m256 (&rows)[8]) {
  __m256 fours[8];  // [4 g + j]: column 4 q + j of rows 4 g to 4 g + 3 in half q
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
    const __m256d low = _mm256_castps_pd(_mm256_unpacklo_ps(rows[i], rows[i + 1]));
    const __m256d high = _mm256_castps_pd(_mm256_unpackhi_ps(rows[i], rows[i + 1]));
    const __m256d next_low = _mm256_castps_pd(_mm256_unpacklo_ps(rows[i + 2], rows[i + 3]));
    const __m256d next_high = _mm256_castps_pd(_mm256_unpackhi_ps(rows[i + 2], rows[i + 3]));
    fours[i] = _mm256_castpd_ps(_mm256_unpacklo_pd(low, next_low));
    fours[i + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(low, next_low));
    fours[i + 2] = _mm256_castpd_ps(_mm256_unpacklo_pd(high, next_high));
    fours[i + 3] = _mm256_castpd_ps(_mm256_unpackhi_pd(high, next_high));
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    rows[j] = _mm256_permute2f128_ps(fours[j], fours[4 + j], 0x20);
    rows[4 + j] = _mm256_permute2f128_ps(fours[j], fours[4 + j], 0x31);
  }
}

}  // namespace

void transpose_avx2(const void* source, int64_t stride_bytes, int64_t num_units, uint32_t* packed) {
  const char* from = static_cast<const char*>(source);
  for (int64_t unit = 0; unit < num_units; unit += 8) {
    __m256 halves[2][8];
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
#pragma GCC unroll 8
      for (int r = 0; r < 8; ++r) {
        halves[half][r] =
            _mm256_loadu_ps(reinterpret_cast<const float*>(from + (half * 8 + r) * stride_bytes + unit * 4));
      }
      transpose_square(halves[half]);
    }
    // Past the caches: packed weights are read much later, and whole lines need no reading first.
#pragma GCC unroll 8
    for (int r = 0; r < 8; ++r) {
      float* line = reinterpret_cast<float*>(packed + (unit + r) * kBlockColumns);
      _mm256_stream_ps(line, halves[0][r]);
      _mm256_stream_ps(line + 8, halves[1][r]);
    }
  }
  _mm_sfence();
}

void linear_avx2(const LinearCall& call, const LinearTile& tile) {
  if (call.weight_type == ElementType::kFloat32) {
    run_tile<Float32Weights>(call, tile);
  } else if (call.x_type == ElementType::kFloat32) {
    run_tile<WidenedWeights<float>>(call, tile);
  } else {
    run_tile<WidenedWeights<BFloat16>>(call, tile);
  }
}

}  // namespace pelton
