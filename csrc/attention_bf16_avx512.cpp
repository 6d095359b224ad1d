// Paged attention with AVX-512's products of bf16 pairs, for bf16 queries and caches. Needs BF16 besides F, BW, DQ, VL.
//
// Sums are fp32. Weights are rounded to bf16, as in FlashAttention-2 (arXiv 2307.08691).
#include "attention_blocks_avx512.h"

namespace pelton {
namespace {

struct BFloat16Pairs {
  static constexpr int kDepth = 2;
  static constexpr int kWords = 1;
  using Sum = __m512;

  static __m512 zero() { return _mm512_setzero_ps(); }
  static void expand(__m512i raw, __m512i operands[1]) { operands[0] = raw; }
  static __m512 dot(__m512 sum, __m512i operand, __m512i word) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(operand), reinterpret_cast<__m512bh>(word));
  }
  static __m512 to_float(__m512 sum) { return sum; }

  static void load_query(const AttentionProblem& problem, int64_t offset, void* words) {
    const auto* query = static_cast<const BFloat16*>(problem.query) + offset;
    std::memcpy(words, query, std::size_t(problem.head_dim) * sizeof(BFloat16));
  }
  static float query_scale(const AttentionProblem& problem) { return problem.query_scale; }

  static void pack_weights(const AttentionSegment& segment, float* weights) {
    round_weights(segment, weights, weights);
  }
};

}  // namespace

const AttentionKernel kAvx512Bf16Attention{2 * kMaxBlock,
                                           block_scratch_floats<BFloat16Pairs>,
                                           load_block_queries<BFloat16Pairs>,
                                           attend_blocks<BFloat16Pairs>,
                                           merge_avx512,
                                           store_avx512};

}  // namespace pelton
