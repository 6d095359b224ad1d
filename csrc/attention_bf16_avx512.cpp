// Paged attention with AVX-512's products of bf16 pairs, for bf16 queries over bf16 or e4m3. Needs BF16 besides F, BW, DQ
// and VL.
//
// Sums are fp32. Weights are rounded to bf16, as in FlashAttention-2 (arXiv 2307.08691).
#include "attention_bf16_avx512.h"
#include "attention_blocks_avx512.h"

namespace pelton {
namespace {

struct BFloat16Products {
  using Sum = __m512;

  static __m512 zero() { return _mm512_setzero_ps(); }
  static __m512 dot(__m512 sum, __m512i operand, __m512i word) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(operand), reinterpret_cast<__m512bh>(word));
  }
  static __m512 to_float(__m512 sum) { return sum; }
};

struct BFloat16Pairs : BFloat16Products {
  static constexpr int kDepth = 2;
  static constexpr int kWords = 1;

  static void expand(__m512i raw, __m512i operands[1]) { operands[0] = raw; }

  static float load_query(const AttentionProblem& problem, int64_t offset, void* words) {
    const auto* query = static_cast<const BFloat16*>(problem.query) + offset;
    std::memcpy(words, query, std::size_t(problem.head_dim) * sizeof(BFloat16));
    return problem.query_scale;
  }

  static float pack_weights(const AttentionSegment& segment, float* weights) {
    round_weights(segment, weights, weights);
    return 1.0f;
  }
};

// The bits of an e4m3 value, put where bf16 has them, are the value times 2^-120. Queries and weights make up for half
// of that, so that no product is near the smallest normal number.
struct Float8Fours : BFloat16Products {
  static constexpr int kDepth = 4;
  static constexpr int kWords = 2;

  // The first and third, then the second and fourth element of each lane.
  static void expand(__m512i raw, __m512i operands[2]) {
    const __m512i used = _mm512_set1_epi16(static_cast<int16_t>(0x87f0));
    operands[0] = _mm512_and_si512(_mm512_srai_epi16(_mm512_slli_epi16(raw, 8), 4), used);
    operands[1] = _mm512_and_si512(_mm512_srai_epi16(raw, 4), used);
  }

  static float load_query(const AttentionProblem& problem, int64_t offset, void* words) {
    const auto* query = static_cast<const BFloat16*>(problem.query) + offset;
    for (int d = 0; d < problem.head_dim; d += kLanes) {
      store_words(static_cast<BFloat16*>(words) + d, _mm512_mul_ps(load_lanes(query + d), _mm512_set1_ps(0x1p60f)));
    }
    return problem.query_scale * 0x1p60f;
  }

  static float pack_weights(const AttentionSegment& segment, float* weights) {
    for (int v = segment.first_vector; v < segment.end_vector; ++v) {
      const __m512 scaled = scaled_weights(segment, v, _mm512_load_ps(weights + v * kLanes));
      store_words(reinterpret_cast<BFloat16*>(weights) + v * kLanes, _mm512_mul_ps(scaled, _mm512_set1_ps(0x1p60f)));
    }
    return 0x1p60f;
  }

 private:
  // 16 values in bf16, of each four the first, third, second and fourth.
  static void store_words(BFloat16* to, __m512 values) {
    const auto rounded = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(values));
    constexpr int kOrder = _MM_SHUFFLE(3, 1, 2, 0);
    const __m256i words = _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(rounded, kOrder), kOrder);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), words);
  }
};

std::size_t scratch_floats(const AttentionProblem& problem, int queries) {
  const auto of_type = problem.cache_type == ElementType::kFloat8 ? block_scratch_floats<Float8Fours>
                                                                  : block_scratch_floats<BFloat16Pairs>;
  return of_type(problem, queries);
}

void load_queries(const AttentionProblem& problem, const AttentionTile& tile, float* scratch) {
  const auto of_type =
      problem.cache_type == ElementType::kFloat8 ? load_block_queries<Float8Fours> : load_block_queries<BFloat16Pairs>;
  of_type(problem, tile, scratch);
}

void attend(const AttentionProblem& problem, const AttentionTile& tile, const AttentionSegment& segment,
            const AttentionSegment& next, float* scratch, const SoftmaxState& state) {
  const auto of_type =
      problem.cache_type == ElementType::kFloat8 ? attend_blocks<Float8Fours> : attend_blocks<BFloat16Pairs>;
  of_type(problem, tile, segment, next, scratch, state);
}

}  // namespace

const AttentionKernel kAvx512Bf16Attention{2 * kMaxBlock, scratch_floats, load_queries, attend,
                                           merge_avx512,  store_avx512};

}  // namespace pelton
