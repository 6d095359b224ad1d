// Products of int8.h with AVX2.
#include <utility>

#include "int8.h"
#include "panel_tile_avx2.h"
#include "quantized_rows_avx2.h"

namespace pelton {
namespace {

constexpr int64_t kQuadBytes = 4 * kPanelOutputs;
constexpr int64_t kGroupBytes = kInt8GroupInputs * kPanelOutputs;

// dots[r][p][j] += the products of one quad of k, whose codes begin at `codes`, with that of x at rows[r].q + k.
template <int kRows, int kPairs>
inline void add_quad(const uint8_t* codes, const Int8Group* rows, int64_t k, __m256i (&dots)[kRows][kPairs][2]) {
  const __m256i flip = _mm256_set1_epi8(-128);
#pragma GCC unroll 2
  for (int p = 0; p < kPairs; ++p) {
    __m256i q[2], magnitude[2];
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
      const auto* from = reinterpret_cast<const __m256i*>(codes + p * 32 + j * 64);
      q[j] = _mm256_xor_si256(_mm256_load_si256(from), flip);
      magnitude[j] = _mm256_abs_epi8(q[j]);
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const __m256i x = broadcast_quad(rows[r].q + k);
#pragma GCC unroll 2
      for (int j = 0; j < 2; ++j) dots[r][p][j] = add_signed_products(dots[r][p][j], q[j], magnitude[j], x);
    }
  }
}

template <int kRows>
void run_pass(const Int8Call& call, const Int8Tile& tile, const PanelPass& pass) {
  constexpr int kPairs = pairs_of_pass(kRows);
  const int64_t num_groups = int8_num_groups(call.num_inputs);
  const uint8_t* __restrict codes = tile.panel + pass.first_pair * 32;
  const Int8Group* __restrict rows = tile.rows + pass.first_row;
  const uint8_t* ahead = tile.ahead;
  __m256 sums[kRows][kPairs][2] = {};
  for (int64_t g = 0; g < num_groups; ++g, rows += tile.num_rows, codes += kGroupBytes, ahead += kGroupBytes) {
    for (int64_t line = 0; line < pass.ahead_lines; ++line) {
      _mm_prefetch(reinterpret_cast<const char*>(ahead + line * 64), _MM_HINT_T1);
    }
    __m256i dots[kRows][kPairs][2] = {};
    // Not unrolled: the compiler would compute the products of all quads before it adds them up, outside of the registers.
#pragma GCC unroll 1
    for (int64_t quad = 0; quad < kInt8GroupInputs / 4; ++quad) {
      add_quad(codes + quad * kQuadBytes, rows, quad * 4, dots);
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const __m256 scale = _mm256_set1_ps(rows[r].scale);
#pragma GCC unroll 4
      for (int v = 0; v < 2 * kPairs; ++v) {
        __m256& sum = sums[r][v / 2][v % 2];
        sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots[r][v / 2][v % 2]), scale, sum);
      }
    }
  }
  const auto* scales = reinterpret_cast<const float*>(tile.panel + int8_code_bytes(call.num_inputs));
#pragma GCC unroll 4
  for (int v = 0; v < 2 * kPairs; ++v) {
    const __m256 scale = _mm256_load_ps(scales + (pass.first_pair + v / 2) * 8 + v % 2 * 16);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) sums[r][v / 2][v % 2] = _mm256_mul_ps(sums[r][v / 2][v % 2], scale);
  }
  store_pass<kRows>(call, tile, pass, sums);
}

}  // namespace

void int8_quantize_avx2(const Int8Call& call, int64_t row, int64_t num_rows, Int8Group* panel) {
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

void int8_tile_avx2(const Int8Call& call, const Int8Tile& tile) {
  static constexpr PassTable<Int8Call, Int8Tile> kTable{{run_pass<1>, run_pass<2>, run_pass<3>, run_pass<4>}};
  run_passes(call, tile, kTable);
}

}  // namespace pelton
