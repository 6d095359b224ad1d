// Grouped products with AVX2.
#include "grouped.h"
#include "panel_tile_avx2.h"
#include "quantized_rows_avx2.h"

namespace pelton {
namespace {

constexpr int64_t kQuadBytes = 4 * kPanelOutputs;

inline __m256i load_codes(const uint8_t* from) { return _mm256_load_si256(reinterpret_cast<const __m256i*>(from)); }

inline __m256 load_halves(const uint8_t* from) {
  return _mm256_cvtph_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(from)));
}

template <int kRows, int kPairs>
using Dots = __m256i[kRows][kPairs][2];

// words[r][p][j] += the products of codes[j], of 4 bits, with the quad of x at rows[r].q + k, in pairs of 16 bits. A
// group adds up eight quads there: 8 * 2 * 15 * 127 = 30480.
template <int kRows, int kPairs>
inline void add_small_products(const __m256i (&codes)[2], const GroupedRows* rows, int64_t k, int p,
                               Dots<kRows, kPairs>& words) {
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    const __m256i x = broadcast_quad(rows[r].q + k);
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
      words[r][p][j] = _mm256_add_epi16(words[r][p][j], _mm256_maddubs_epi16(codes[j], x));
    }
  }
}

// dots = sum over the group of code * q(x)
template <int kRows, int kPairs>
inline void multiply_four_bits(const uint8_t* group, const GroupedRows* rows, Dots<kRows, kPairs>& dots) {
  const __m256i nibble = _mm256_set1_epi8(15);
  // Not unrolled: the compiler would compute the products of all quads before it adds them up, outside of the registers.
#pragma GCC unroll 1
  for (int64_t quad = 0; quad < 4; ++quad) {
#pragma GCC unroll 2
    for (int p = 0; p < kPairs; ++p) {
      const uint8_t* from = group + quad * kQuadBytes + p * 32;
      const __m256i codes[2] = {load_codes(from), load_codes(from + 64)};
      const __m256i low[2] = {_mm256_and_si256(codes[0], nibble), _mm256_and_si256(codes[1], nibble)};
      add_small_products<kRows, kPairs>(low, rows, quad * 4, p, dots);
      const __m256i high[2] = {_mm256_and_si256(_mm256_srli_epi16(codes[0], 4), nibble),
                               _mm256_and_si256(_mm256_srli_epi16(codes[1], 4), nibble)};
      add_small_products<kRows, kPairs>(high, rows, 16 + quad * 4, p, dots);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    const __m256i start = _mm256_set1_epi32(rows[r].start);
#pragma GCC unroll 4
    for (int v = 0; v < 2 * kPairs; ++v) {
      __m256i& dot = dots[r][v / 2][v % 2];
      dot = _mm256_add_epi32(_mm256_madd_epi16(dot, _mm256_set1_epi16(1)), start);
    }
  }
}

// The same with the codes' offset taken off, as multiply_four_bits adds `start` for it.
template <int kRows, int kPairs>
inline void multiply_eight_bits(const uint8_t* group, const GroupedRows* rows, Dots<kRows, kPairs>& dots) {
  const __m256i flip = _mm256_set1_epi8(-128);
#pragma GCC unroll 1
  for (int64_t quad = 0; quad < 8; ++quad) {
#pragma GCC unroll 2
    for (int p = 0; p < kPairs; ++p) {
      const uint8_t* from = group + quad * kQuadBytes + p * 32;
      const __m256i q[2] = {_mm256_xor_si256(load_codes(from), flip), _mm256_xor_si256(load_codes(from + 64), flip)};
      const __m256i magnitude[2] = {_mm256_abs_epi8(q[0]), _mm256_abs_epi8(q[1])};
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const __m256i x = broadcast_quad(rows[r].q + quad * 4);
#pragma GCC unroll 2
        for (int j = 0; j < 2; ++j) dots[r][p][j] = add_signed_products(dots[r][p][j], q[j], magnitude[j], x);
      }
    }
  }
}

template <GroupedKind kKind, int kRows>
void run_pass(const GroupedCall& call, const GroupedTile& tile, const PanelPass& pass) {
  constexpr int kPairs = pairs_of_pass(kRows);
  constexpr int64_t kBytes = grouped_bytes(kKind);
  const int64_t num_groups = call.num_inputs / kGroupInputs;
  const uint8_t* __restrict group = tile.panel;
  const GroupedRows* __restrict rows = tile.rows + pass.first_row;
  const uint8_t* ahead = tile.ahead;
  __m256 sums[kRows][kPairs][2] = {};
  for (int64_t g = 0; g < num_groups; ++g, group += kBytes, rows += tile.num_rows, ahead += kBytes) {
    for (int64_t line = 0; line < pass.ahead_lines; ++line) {
      _mm_prefetch(reinterpret_cast<const char*>(ahead + line * 64), _MM_HINT_T1);
    }
    Dots<kRows, kPairs> dots = {};
    if constexpr (kKind == GroupedKind::kEightBits) {
      multiply_eight_bits<kRows, kPairs>(group + pass.first_pair * 32, rows, dots);
    } else {
      multiply_four_bits<kRows, kPairs>(group + pass.first_pair * 32, rows, dots);
    }
    const uint8_t* halves = group + grouped_codes_bytes(kKind) + pass.first_pair * 16;
#pragma GCC unroll 4
    for (int v = 0; v < 2 * kPairs; ++v) {
      const uint8_t* from = halves + v / 2 * 16 + v % 2 * 32;
      const __m256 scale = load_halves(from);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        __m256& sum = sums[r][v / 2][v % 2];
        const __m256 factor = _mm256_mul_ps(scale, _mm256_set1_ps(rows[r].scale));
        sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots[r][v / 2][v % 2]), factor, sum);
        if constexpr (kKind == GroupedKind::kFourBitsMinimum) {
          sum = _mm256_fmadd_ps(load_halves(from + 2 * kPanelOutputs), _mm256_set1_ps(rows[r].scaled_sum), sum);
        }
      }
    }
  }
  store_pass<kRows>(call, tile, pass, sums);
}

using GroupedPasses = PassTable<GroupedCall, GroupedTile>;

template <GroupedKind kKind>
constexpr GroupedPasses kPasses{{run_pass<kKind, 1>, run_pass<kKind, 2>, run_pass<kKind, 3>, run_pass<kKind, 4>}};

template <typename X>
void quantize_row(const GroupedCall& call, const X* x, GroupedRows* groups, int64_t stride) {
  const int32_t offset = grouped_offset(call.kind);
  if (call.rotated) return quantize_row_vectors<true>(x, call.num_inputs, offset, groups, stride);
  return quantize_row_vectors<false>(x, call.num_inputs, offset, groups, stride);
}

}  // namespace

void grouped_quantize_avx2(const GroupedCall& call, int64_t row, int64_t num_rows, GroupedRows* panel) {
  for (int64_t r = 0; r < num_rows; ++r) {
    const int64_t at = (row + r) * call.x_stride;
    if (call.x_type == ElementType::kBFloat16) {
      quantize_row(call, static_cast<const BFloat16*>(call.x) + at, panel + r, num_rows);
    } else {
      quantize_row(call, static_cast<const float*>(call.x) + at, panel + r, num_rows);
    }
  }
}

void grouped_tile_avx2(const GroupedCall& call, const GroupedTile& tile) {
  switch (call.kind) {
    case GroupedKind::kFourBits:
      return run_passes(call, tile, kPasses<GroupedKind::kFourBits>);
    case GroupedKind::kFourBitsMinimum:
      return run_passes(call, tile, kPasses<GroupedKind::kFourBitsMinimum>);
    case GroupedKind::kEightBits:
      return run_passes(call, tile, kPasses<GroupedKind::kEightBits>);
  }
}

}  // namespace pelton
