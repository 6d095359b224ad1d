// Grouped products by AVX512-VNNI, which multiplies unsigned by signed bytes and adds up quads of them.
#include <algorithm>
#include <utility>

#include "grouped.h"
#include "linear_epilogue_avx512.h"

namespace pelton {
namespace {

template <typename X>
void quantize_row(const X* x, int64_t num_groups, int32_t offset, ActivationGroup* groups, int64_t stride) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  for (int64_t g = 0; g < num_groups; ++g, x += kGroupInputs, groups += stride) {
    const __m512 low = load_lanes(x);
    const __m512 high = load_lanes(x + 16);
    const __m512i bits = _mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(low), magnitude),
                                          _mm512_and_si512(_mm512_castps_si512(high), magnitude));
    const int32_t largest_bits = _mm512_reduce_max_epi32(bits);
    float largest;
    std::memcpy(&largest, &largest_bits, sizeof largest);
    const float inverse = 127.0f / largest;
    const bool usable = inverse > 0.0f && inverse <= 0x1.fffffep127f;
    const auto mask = static_cast<__mmask16>(usable ? 0xffff : 0);
    const __m512 factor = _mm512_set1_ps(inverse);
    const __m512i low_q = _mm512_maskz_cvtps_epi32(mask, _mm512_mul_ps(low, factor));
    const __m512i high_q = _mm512_maskz_cvtps_epi32(mask, _mm512_mul_ps(high, factor));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(groups->q), _mm512_cvtepi32_epi8(low_q));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(groups->q + 16), _mm512_cvtepi32_epi8(high_q));
    const int32_t sum = _mm512_reduce_add_epi32(_mm512_add_epi32(low_q, high_q));
    groups->scale = largest * (1.0f / 127.0f);
    groups->scaled_sum = groups->scale * static_cast<float>(sum);
    groups->start = -offset * sum;
  }
}

inline __m512i broadcast_quad(const int8_t* q) {
  int32_t quad;
  std::memcpy(&quad, q, sizeof quad);
  return _mm512_set1_epi32(quad);
}

inline __m512 load_halves(const uint8_t* from) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}

// dots[r][n] += sum over the group of weight[n][k] * rows[r].q[k]
template <GroupedKind kKind, int kRows>
inline void add_products(const uint8_t* group, const ActivationGroup* rows, __m512i (&dots)[kRows]) {
  if constexpr (kKind == GroupedKind::kEightBits) {
#pragma GCC unroll 8
    for (int quad = 0; quad < 8; ++quad) {
      const __m512i codes = _mm512_loadu_si512(group + quad * 64);
#pragma GCC unroll 12
      for (int r = 0; r < kRows; ++r) {
        dots[r] = _mm512_dpbusd_epi32(dots[r], codes, broadcast_quad(rows[r].q + quad * 4));
      }
    }
  } else {
    const __m512i nibble = _mm512_set1_epi8(15);
#pragma GCC unroll 4
    for (int quad = 0; quad < 4; ++quad) {
      const __m512i codes = _mm512_loadu_si512(group + quad * 64);
      const __m512i low = _mm512_and_si512(codes, nibble);
      const __m512i high = _mm512_and_si512(_mm512_srli_epi16(codes, 4), nibble);
#pragma GCC unroll 12
      for (int r = 0; r < kRows; ++r) {
        dots[r] = _mm512_dpbusd_epi32(dots[r], low, broadcast_quad(rows[r].q + quad * 4));
      }
#pragma GCC unroll 12
      for (int r = 0; r < kRows; ++r) {
        dots[r] = _mm512_dpbusd_epi32(dots[r], high, broadcast_quad(rows[r].q + 16 + quad * 4));
      }
    }
  }
}

template <GroupedKind kKind, int kRows>
void register_tile(const GroupedCall& call, const ActivationGroup* panel, int64_t row, int64_t column) {
  constexpr int64_t kBytes = grouped_bytes(kKind);
  constexpr int64_t kCodeBytes = kGroupOutputs * grouped_code_bytes(kKind);
  constexpr int64_t kPrefetchAhead = 4 * kBytes;
  const int64_t num_groups = call.num_inputs / kGroupInputs;
  const uint8_t* __restrict group = call.weight + column / kGroupOutputs * num_groups * kBytes;
  __m512 sums[kRows];
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) sums[r] = _mm512_setzero_ps();
  for (int64_t g = 0; g < num_groups; ++g, group += kBytes, panel += kRows) {
    __m512i dots[kRows];
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      dots[r] = grouped_offset(kKind) == 0 ? _mm512_setzero_si512() : _mm512_set1_epi32(panel[r].start);
    }
    add_products<kKind, kRows>(group, panel, dots);
    const __m512 scale = load_halves(group + kCodeBytes);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      sums[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[r]), _mm512_mul_ps(scale, _mm512_set1_ps(panel[r].scale)),
                                sums[r]);
    }
    if constexpr (kKind == GroupedKind::kFourBitsMinimum) {
      const __m512 minimum = load_halves(group + kCodeBytes + 2 * kGroupOutputs);
#pragma GCC unroll 12
      for (int r = 0; r < kRows; ++r) {
        sums[r] = _mm512_fmadd_ps(minimum, _mm512_set1_ps(panel[r].scaled_sum), sums[r]);
      }
    }
    // Past the end of the weights too: a prefetch does not fault.
#pragma GCC unroll 9
    for (int64_t line = 0; line < kBytes; line += 64) {
      _mm_prefetch(reinterpret_cast<const char*>(group + kPrefetchAhead + line), _MM_HINT_T0);
    }
  }
  const __mmask16 mask = lane_mask(call.num_outputs - column);
  const __m512 bias = load_bias(call, column, mask);
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) finish(call, row + r, column, mask, sums[r], bias);
}

using RegisterTile = void (*)(const GroupedCall&, const ActivationGroup*, int64_t, int64_t);

struct TileTable {
  RegisterTile tiles[kMaxPanelRows];  // by number of rows, less one
};

template <GroupedKind kKind, int... kRows>
constexpr TileTable tile_table(std::integer_sequence<int, kRows...>) {
  return {{register_tile<kKind, kRows + 1>...}};
}

template <GroupedKind kKind>
constexpr TileTable kTiles = tile_table<kKind>(std::make_integer_sequence<int, kMaxPanelRows>());

}  // namespace

void quantize_row_vnni(const GroupedCall& call, int64_t row, ActivationGroup* groups, int64_t stride) {
  const int64_t num_groups = call.num_inputs / kGroupInputs;
  const int32_t offset = grouped_offset(call.kind);
  if (call.x_type == ElementType::kBFloat16) {
    const auto* x = static_cast<const BFloat16*>(call.x) + row * call.x_stride;
    quantize_row(x, num_groups, offset, groups, stride);
  } else {
    quantize_row(static_cast<const float*>(call.x) + row * call.x_stride, num_groups, offset, groups, stride);
  }
}

void grouped_tile_vnni(const GroupedCall& call, const ActivationGroup* panel, int64_t row, int64_t num_rows,
                       int64_t column) {
  const TileTable& table = call.kind == GroupedKind::kFourBits          ? kTiles<GroupedKind::kFourBits>
                           : call.kind == GroupedKind::kFourBitsMinimum ? kTiles<GroupedKind::kFourBitsMinimum>
                                                                        : kTiles<GroupedKind::kEightBits>;
  table.tiles[num_rows - 1](call, panel, row, column);
}

}  // namespace pelton
