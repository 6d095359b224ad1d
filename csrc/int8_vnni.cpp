// Products of int8.h by AVX512-VNNI, which multiplies unsigned by signed bytes and adds up quads of them.
#include <utility>

#include "int8.h"
#include "panel_epilogue_avx512.h"
#include "quantized_rows_avx512.h"

namespace pelton {
namespace {

constexpr int64_t kGroupLines = kInt8GroupInputs * kPanelOutputs / 64;

inline __m512i broadcast_quad(const int8_t* q) {
  int32_t quad;
  std::memcpy(&quad, q, sizeof quad);
  return _mm512_set1_epi32(quad);
}

template <int kRows>
void register_tile(const Int8Call& call, const Int8Tile& tile) {
  const int64_t num_groups = int8_num_groups(call.num_inputs);
  const uint8_t* __restrict codes = tile.panel;
  const Int8Group* __restrict rows = tile.rows;
  const uint8_t* ahead = tile.ahead;
  __m512 sums[kRows][2];
#pragma GCC unroll 7
  for (int r = 0; r < kRows; ++r) sums[r][0] = sums[r][1] = _mm512_setzero_ps();
  for (int64_t g = 0; g < num_groups; ++g, rows += kRows, codes += kGroupLines * 64, ahead += kGroupLines * 64) {
    for (int64_t line = 0; line < tile.ahead_lines; ++line) {
      _mm_prefetch(reinterpret_cast<const char*>(ahead + line * 64), _MM_HINT_T1);
    }
    __m512i dots[kRows][2];
#pragma GCC unroll 7
    for (int r = 0; r < kRows; ++r) dots[r][0] = dots[r][1] = _mm512_set1_epi32(rows[r].start);
#pragma GCC unroll 16
    for (int64_t quad = 0; quad < kInt8GroupInputs / 4; ++quad) {
      const __m512i first = _mm512_load_si512(codes + quad * 128);
      const __m512i second = _mm512_load_si512(codes + quad * 128 + 64);
#pragma GCC unroll 7
      for (int r = 0; r < kRows; ++r) {
        const __m512i x = broadcast_quad(rows[r].q + quad * 4);
        dots[r][0] = _mm512_dpbusd_epi32(dots[r][0], first, x);
        dots[r][1] = _mm512_dpbusd_epi32(dots[r][1], second, x);
      }
    }
#pragma GCC unroll 7
    for (int r = 0; r < kRows; ++r) {
      const __m512 scale = _mm512_set1_ps(rows[r].scale);
      sums[r][0] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[r][0]), scale, sums[r][0]);
      sums[r][1] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[r][1]), scale, sums[r][1]);
    }
  }
  const __m512 first_scale = _mm512_load_ps(codes);
  const __m512 second_scale = _mm512_load_ps(codes + 64);
#pragma GCC unroll 7
  for (int r = 0; r < kRows; ++r) {
    sums[r][0] = _mm512_mul_ps(sums[r][0], first_scale);
    sums[r][1] = _mm512_mul_ps(sums[r][1], second_scale);
  }
  store_panel<kRows>(call, tile.row, tile.column, sums);
}

template <int... kRows>
constexpr auto tile_table(std::integer_sequence<int, kRows...>) {
  struct Table {
    Int8TileFunction tiles[sizeof...(kRows)];  // by number of rows, less one
  };
  return Table{{register_tile<kRows + 1>...}};
}

}  // namespace

void int8_quantize_vnni(const Int8Call& call, int64_t row, int64_t num_rows, Int8Group* panel) {
  for (int64_t r = 0; r < num_rows; ++r) {
    const int64_t at = (row + r) * call.x_stride;
    if (call.x_type == ElementType::kBFloat16) {
      const auto* x = static_cast<const BFloat16*>(call.x) + at;
      quantize_row_vectors<true>(x, call.num_inputs, kInt8Offset, panel + r, num_rows);
    } else {
      const auto* x = static_cast<const float*>(call.x) + at;
      quantize_row_vectors<true>(x, call.num_inputs, kInt8Offset, panel + r, num_rows);
    }
  }
}

void int8_tile_vnni(const Int8Call& call, const Int8Tile& tile) {
  static constexpr auto kTable = tile_table(std::make_integer_sequence<int, kTileRows>());
  kTable.tiles[tile.num_rows - 1](call, tile);
}

}  // namespace pelton
