// Grouped products by AVX512-VNNI, which multiplies unsigned by signed bytes and adds up quads of them.
#include <utility>

#include "grouped.h"
#include "panel_epilogue_avx512.h"
#include "quantized_rows_avx512.h"

namespace pelton {
namespace {

inline __m512i broadcast_quad(const int8_t* q) {
  int32_t quad;
  std::memcpy(&quad, q, sizeof quad);
  return _mm512_set1_epi32(quad);
}

inline __m512 load_halves(const uint8_t* from) {
  return _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(from)));
}

// dots[r][v] += sum over a quad of k of codes[v][n][k] * rows[r].q[k]
template <int kRows>
inline void add_quad(__m512i first, __m512i second, const GroupedRows* rows, int64_t k, __m512i (&dots)[kRows][2]) {
#pragma GCC unroll 7
  for (int r = 0; r < kRows; ++r) {
    const __m512i x = broadcast_quad(rows[r].q + k);
    dots[r][0] = _mm512_dpbusd_epi32(dots[r][0], first, x);
    dots[r][1] = _mm512_dpbusd_epi32(dots[r][1], second, x);
  }
}

template <GroupedKind kKind, int kRows>
inline void add_group(const uint8_t* group, const GroupedRows* rows, __m512i (&dots)[kRows][2]) {
  if constexpr (kKind == GroupedKind::kEightBits) {
#pragma GCC unroll 8
    for (int64_t quad = 0; quad < 8; ++quad) {
      add_quad<kRows>(_mm512_load_si512(group + quad * 128), _mm512_load_si512(group + quad * 128 + 64), rows, quad * 4,
                      dots);
    }
  } else {
    const __m512i nibble = _mm512_set1_epi8(15);
#pragma GCC unroll 4
    for (int64_t quad = 0; quad < 4; ++quad) {
      const __m512i first = _mm512_load_si512(group + quad * 128);
      const __m512i second = _mm512_load_si512(group + quad * 128 + 64);
      add_quad<kRows>(_mm512_and_si512(first, nibble), _mm512_and_si512(second, nibble), rows, quad * 4, dots);
      add_quad<kRows>(_mm512_and_si512(_mm512_srli_epi16(first, 4), nibble),
                      _mm512_and_si512(_mm512_srli_epi16(second, 4), nibble), rows, 16 + quad * 4, dots);
    }
  }
}

template <GroupedKind kKind, int kRows>
void register_tile(const GroupedCall& call, const GroupedTile& tile) {
  constexpr int64_t kBytes = grouped_bytes(kKind);
  constexpr int64_t kCodesBytes = grouped_codes_bytes(kKind);
  const int64_t num_groups = call.num_inputs / kGroupInputs;
  const uint8_t* __restrict group = tile.panel;
  const GroupedRows* __restrict rows = tile.rows;
  const uint8_t* ahead = tile.ahead;
  __m512 sums[kRows][2];
#pragma GCC unroll 7
  for (int r = 0; r < kRows; ++r) sums[r][0] = sums[r][1] = _mm512_setzero_ps();
  for (int64_t g = 0; g < num_groups; ++g, group += kBytes, rows += kRows, ahead += kBytes) {
    // Past the end of the weights too: a prefetch does not fault.
    for (int64_t line = 0; line < tile.ahead_lines; ++line) {
      _mm_prefetch(reinterpret_cast<const char*>(ahead + line * 64), _MM_HINT_T1);
    }
    __m512i dots[kRows][2];
#pragma GCC unroll 7
    for (int r = 0; r < kRows; ++r) {
      dots[r][0] = grouped_offset(kKind) == 0 ? _mm512_setzero_si512() : _mm512_set1_epi32(rows[r].start);
      dots[r][1] = dots[r][0];
    }
    add_group<kKind, kRows>(group, rows, dots);
#pragma GCC unroll 2
    for (int64_t v = 0; v < 2; ++v) {
      const __m512 scale = load_halves(group + kCodesBytes + v * 32);
#pragma GCC unroll 7
      for (int r = 0; r < kRows; ++r) {
        sums[r][v] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[r][v]),
                                     _mm512_mul_ps(scale, _mm512_set1_ps(rows[r].scale)), sums[r][v]);
      }
      if constexpr (kKind == GroupedKind::kFourBitsMinimum) {
        const __m512 minimum = load_halves(group + kCodesBytes + 64 + v * 32);
#pragma GCC unroll 7
        for (int r = 0; r < kRows; ++r) {
          sums[r][v] = _mm512_fmadd_ps(minimum, _mm512_set1_ps(rows[r].scaled_sum), sums[r][v]);
        }
      }
    }
  }
  store_panel<kRows>(call, tile.row, tile.column, sums);
}

struct TileTable {
  GroupedTileFunction tiles[kTileRows];  // by number of rows, less one
};

template <GroupedKind kKind, int... kRows>
constexpr TileTable tile_table(std::integer_sequence<int, kRows...>) {
  return {{register_tile<kKind, kRows + 1>...}};
}

template <GroupedKind kKind>
constexpr TileTable kTiles = tile_table<kKind>(std::make_integer_sequence<int, kTileRows>());

template <typename X>
void quantize_row(const GroupedCall& call, const X* x, GroupedRows* groups, int64_t stride) {
  const int32_t offset = grouped_offset(call.kind);
  if (call.rotated) return quantize_row_vectors<true>(x, call.num_inputs, offset, groups, stride);
  return quantize_row_vectors<false>(x, call.num_inputs, offset, groups, stride);
}

}  // namespace

void grouped_quantize_vnni(const GroupedCall& call, int64_t row, int64_t num_rows, GroupedRows* panel) {
  for (int64_t r = 0; r < num_rows; ++r) {
    const int64_t at = (row + r) * call.x_stride;
    if (call.x_type == ElementType::kBFloat16) {
      quantize_row(call, static_cast<const BFloat16*>(call.x) + at, panel + r, num_rows);
    } else {
      quantize_row(call, static_cast<const float*>(call.x) + at, panel + r, num_rows);
    }
  }
}

void grouped_tile_vnni(const GroupedCall& call, const GroupedTile& tile) {
  const TileTable& table = call.kind == GroupedKind::kFourBits          ? kTiles<GroupedKind::kFourBits>
                           : call.kind == GroupedKind::kFourBitsMinimum ? kTiles<GroupedKind::kFourBitsMinimum>
                                                                        : kTiles<GroupedKind::kEightBits>;
  table.tiles[tile.num_rows - 1](call, tile);
}

}  // namespace pelton
