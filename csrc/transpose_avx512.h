// Transposition of squares of 32-bit units in registers. For *_avx512.cpp.
#pragma once
#include "lanes_avx512.h"

namespace pelton {

// rows[r][c] -> rows[c][r], 16 x 16 units of 32 bits, by exchanging ever larger squares across the diagonal.
static inline void transpose_square(__m512i (&rows)[16]) {
  __m512i pairs[16];
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    const __m512i low = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    const __m512i high = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
    const __m512i next_low = _mm512_unpacklo_epi32(rows[i + 2], rows[i + 3]);
    const __m512i next_high = _mm512_unpackhi_epi32(rows[i + 2], rows[i + 3]);
    pairs[i] = _mm512_unpacklo_epi64(low, next_low);
    pairs[i + 1] = _mm512_unpackhi_epi64(low, next_low);
    pairs[i + 2] = _mm512_unpacklo_epi64(high, next_high);
    pairs[i + 3] = _mm512_unpackhi_epi64(high, next_high);
  }
  // pairs[4 g + j] holds column 4 q + j of rows 4 g to 4 g + 3 in its 128-bit quarter q.
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const __m512i upper_even = _mm512_shuffle_i32x4(pairs[j], pairs[4 + j], 0x88);
    const __m512i upper_odd = _mm512_shuffle_i32x4(pairs[j], pairs[4 + j], 0xdd);
    const __m512i lower_even = _mm512_shuffle_i32x4(pairs[8 + j], pairs[12 + j], 0x88);
    const __m512i lower_odd = _mm512_shuffle_i32x4(pairs[8 + j], pairs[12 + j], 0xdd);
    rows[j] = _mm512_shuffle_i32x4(upper_even, lower_even, 0x88);
    rows[8 + j] = _mm512_shuffle_i32x4(upper_even, lower_even, 0xdd);
    rows[4 + j] = _mm512_shuffle_i32x4(upper_odd, lower_odd, 0x88);
    rows[12 + j] = _mm512_shuffle_i32x4(upper_odd, lower_odd, 0xdd);
  }
}

}  // namespace pelton
