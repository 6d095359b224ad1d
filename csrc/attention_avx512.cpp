// Paged attention with AVX-512, in fp32 arithmetic. Needs F, BW, DQ and VL.
#include "attention_blocks_avx512.h"

namespace pelton {
namespace {

struct Float32Arithmetic {
  using Sum = __m512;

  static __m512 zero() { return _mm512_setzero_ps(); }
  static __m512 dot(__m512 sum, __m512i operand, __m512i word) {
    return _mm512_fmadd_ps(_mm512_castsi512_ps(word), _mm512_castsi512_ps(operand), sum);
  }
  static __m512 to_float(__m512 sum) { return sum; }

  static float load_query(const AttentionProblem& problem, int64_t offset, void* words) {
    const __m512 scale = _mm512_set1_ps(problem.query_scale);
    for (int d = 0; d < problem.head_dim; d += kLanes) {
      __m512 loaded;
      if (problem.query_type == ElementType::kBFloat16) {
        loaded = load_lanes(static_cast<const BFloat16*>(problem.query) + offset + d);
      } else {
        loaded = load_lanes(static_cast<const float*>(problem.query) + offset + d);
      }
      _mm512_storeu_ps(static_cast<float*>(words) + d, _mm512_mul_ps(loaded, scale));
    }
    return 1.0f;
  }
  static float pack_weights(const AttentionSegment&, float*) { return 1.0f; }
};

struct Float32Cache : Float32Arithmetic {
  static constexpr int kDepth = 1;
  static constexpr int kWords = 1;

  static void expand(__m512i raw, __m512i operands[1]) { operands[0] = raw; }
};

struct BFloat16Cache : Float32Arithmetic {
  static constexpr int kDepth = 2;
  static constexpr int kWords = 2;

  static void expand(__m512i raw, __m512i operands[2]) {
    operands[0] = _mm512_castps_si512(even_bfloat16(raw));
    operands[1] = _mm512_castps_si512(odd_bfloat16(raw));
  }
};

struct ScaledCache : Float32Arithmetic {
  static constexpr int kDepth = 4;
  static constexpr int kWords = 4;

  static float pack_weights(const AttentionSegment& segment, float* weights) {
    for (int v = segment.first_vector; v < segment.end_vector; ++v) {
      const __m512 scaled = scaled_weights(segment, v, _mm512_load_ps(weights + v * kLanes));
      _mm512_store_ps(weights + v * kLanes, scaled);
    }
    return 1.0f;
  }
};

struct Int8Cache : ScaledCache {
  static void expand(__m512i raw, __m512i operands[4]) {
    for (int i = 0; i < 4; ++i) {
      const __m512i integers = _mm512_srai_epi32(_mm512_sll_epi32(raw, _mm_cvtsi32_si128(24 - 8 * i)), 24);
      operands[i] = _mm512_castps_si512(_mm512_cvtepi32_ps(integers));
    }
  }
};

struct Float8Cache : ScaledCache {
  // The bits of an e4m3 value, put where fp32 has them, are the value times 2^-120.
  static void expand(__m512i raw, __m512i operands[4]) {
    const __m512i used = _mm512_set1_epi32(static_cast<int>(0x87f00000));
    for (int i = 0; i < 4; ++i) {
      const __m512i bits = _mm512_srai_epi32(_mm512_sll_epi32(raw, _mm_cvtsi32_si128(24 - 8 * i)), 4);
      const __m512 small = _mm512_castsi512_ps(_mm512_and_si512(bits, used));
      operands[i] = _mm512_castps_si512(_mm512_mul_ps(small, _mm512_set1_ps(0x1p120f)));
    }
  }
};

void attend(const AttentionProblem& problem, const AttentionTile& tile, const AttentionSegment& segment,
            const AttentionSegment& next, float* scratch, const SoftmaxState& state) {
  switch (problem.cache_type) {
    case ElementType::kFloat32:
      return attend_blocks<Float32Cache>(problem, tile, segment, next, scratch, state);
    case ElementType::kBFloat16:
      return attend_blocks<BFloat16Cache>(problem, tile, segment, next, scratch, state);
    case ElementType::kInt8:
      return attend_blocks<Int8Cache>(problem, tile, segment, next, scratch, state);
    case ElementType::kFloat8:
      return attend_blocks<Float8Cache>(problem, tile, segment, next, scratch, state);
  }
}

void store_vector(const AttentionProblem& problem, int64_t offset, __m512 values) {
  if (problem.query_type == ElementType::kBFloat16) {
    store_lanes(static_cast<BFloat16*>(problem.output) + offset, values);
  } else {
    store_lanes(static_cast<float*>(problem.output) + offset, values);
  }
}

}  // namespace

void merge_avx512(const AttentionProblem& problem, int queries, const SoftmaxState& into, const SoftmaxState& from) {
  for (int i = 0; i < queries; ++i) {
    const float maximum = into.maximum[i] > from.maximum[i] ? into.maximum[i] : from.maximum[i];
    const __m512 keep = exp2_vector(_mm512_set1_ps(into.maximum[i] - maximum));
    const __m512 add = exp2_vector(_mm512_set1_ps(from.maximum[i] - maximum));
    into.maximum[i] = maximum;
    into.sum[i] = into.sum[i] * _mm512_cvtss_f32(keep) + from.sum[i] * _mm512_cvtss_f32(add);
    for (int d = i * problem.head_dim; d < (i + 1) * problem.head_dim; d += kLanes) {
      const __m512 added = _mm512_mul_ps(_mm512_load_ps(from.weighted + d), add);
      _mm512_store_ps(into.weighted + d, _mm512_fmadd_ps(_mm512_load_ps(into.weighted + d), keep, added));
    }
  }
}

void store_avx512(const AttentionProblem& problem, const AttentionTile& tile, const SoftmaxState& state) {
  for (int i = 0; i < tile.num_tokens * problem.group; ++i) {
    const int64_t token = tile.first_token + i / problem.group;
    const int64_t head = tile.kv_head * problem.group + i % problem.group;
    const int64_t offset = (token * problem.num_heads + head) * problem.head_dim;
    const __m512 inverse = _mm512_set1_ps(1.0f / state.sum[i]);
    const float* weighted = state.weighted + i * problem.head_dim;
    for (int d = 0; d < problem.head_dim; d += kLanes) {
      store_vector(problem, offset + d, _mm512_mul_ps(_mm512_load_ps(weighted + d), inverse));
    }
  }
}

const AttentionKernel kAvx512Attention{2 * kMaxBlock,
                                       block_scratch_floats<Float32Cache>,
                                       load_block_queries<Float32Cache>,
                                       attend,
                                       merge_avx512,
                                       store_avx512};

}  // namespace pelton
