// Paged attention in plain C++: runs everywhere, and is what the vector kernels are tested against.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "attention.h"

namespace pelton {
namespace {

// An e4m3 value, which is exact in fp32: 3 bits of mantissa below 4 of exponent, whose bias is 120 less.
float float8_to_float(uint8_t value) {
  const uint32_t bits = static_cast<uint32_t>(value & 0x80u) << 24 | static_cast<uint32_t>(value & 0x7fu) << 20;
  float result;
  std::memcpy(&result, &bits, sizeof result);
  return result * 0x1p120f;
}

float load_element(const void* base, int64_t index, ElementType type) {
  switch (type) {
    case ElementType::kBFloat16:
      return to_float(static_cast<const BFloat16*>(base)[index]);
    case ElementType::kInt8:
      return static_cast<const int8_t*>(base)[index];
    case ElementType::kFloat8:
      return float8_to_float(static_cast<const uint8_t*>(base)[index]);
    default:
      return static_cast<const float*>(base)[index];
  }
}

void store_element(void* base, int64_t index, ElementType type, float value) {
  if (type == ElementType::kBFloat16) {
    store(static_cast<BFloat16*>(base) + index, value);
  } else {
    store(static_cast<float*>(base) + index, value);
  }
}

// Scratch: queries [queries, head_dim], then the scores of one query [kSegment].
std::size_t scratch_floats(const AttentionProblem& problem, int queries) {
  return std::size_t(queries) * problem.head_dim + kSegment;
}

void load_queries(const AttentionProblem& problem, const AttentionTile& tile, float* scratch) {
  const int group = problem.group;
  for (int i = 0; i < tile.num_tokens * group; ++i) {
    const int64_t offset = (tile.first_token + i / group) * problem.query_token_stride +
                           (tile.kv_head * group + i % group) * problem.query_head_stride;
    for (int d = 0; d < problem.head_dim; ++d) {
      const float element = load_element(problem.query, offset + d, problem.query_type);
      scratch[i * problem.head_dim + d] = element * problem.query_scale;
    }
  }
}

float score(const AttentionProblem& problem, const AttentionSegment& segment, const float* query, int key) {
  const int width = 4 / bytes_of(problem.cache_type);
  const std::byte* keys = segment.keys[key / kKeyVector];
  float sum = 0;
  for (int d = 0; d < problem.head_dim; ++d) {
    const int64_t index = int64_t{d / width} * problem.page_size * width + key % kKeyVector * width + d % width;
    sum += query[d] * load_element(keys, index, problem.cache_type);
  }
  if (is_scaled(problem.cache_type)) sum *= segment.key_scales[key / kKeyVector][key % kKeyVector];
  return problem.capped_scale > 0 ? problem.capped_scale * std::tanh(sum) : sum;
}

void add_value(const AttentionProblem& problem, const AttentionSegment& segment, int key, float weight, float* sum) {
  const int width = 4 / bytes_of(problem.cache_type);
  const std::byte* values = segment.values[key / kKeyVector];
  const int inside = key % kKeyVector;
  if (is_scaled(problem.cache_type)) weight *= segment.value_scales[key / kKeyVector][inside];
  for (int d = 0; d < problem.head_dim; ++d) {
    const int64_t index = (int64_t{inside / width} * problem.head_dim + d) * width + inside % width;
    sum[d] += weight * load_element(values, index, problem.cache_type);
  }
}

void attend(const AttentionProblem& problem, const AttentionTile& tile, const AttentionSegment& segment,
            const AttentionSegment&, float* scratch, const SoftmaxState& state) {
  const int queries = tile.num_tokens * problem.group;
  float* scores = scratch + queries * problem.head_dim;
  for (int i = 0; i < queries; ++i) {
    const int position = tile.first_position + i / problem.group;
    const int begin = std::max(segment.first_key, position - (problem.window - 1) - segment.begin);
    const int end = std::min(segment.end_key, position + 1 - segment.begin);
    float maximum = kEmptyMax;
    for (int key = begin; key < end; ++key) {
      scores[key] = score(problem, segment, scratch + i * problem.head_dim, key);
      maximum = std::max(maximum, scores[key]);
    }
    float sum = 0;
    float* weighted = state.weighted + i * problem.head_dim;
    std::fill_n(weighted, problem.head_dim, 0.0f);
    for (int key = begin; key < end; ++key) {
      const float weight = std::exp2(scores[key] - maximum);
      sum += weight;
      add_value(problem, segment, key, weight, weighted);
    }
    state.maximum[i] = maximum;
    state.sum[i] = sum;
  }
}

void merge(const AttentionProblem& problem, int queries, const SoftmaxState& into, const SoftmaxState& from) {
  const int width = problem.head_dim;
  for (int i = 0; i < queries; ++i) {
    const float maximum = std::max(into.maximum[i], from.maximum[i]);
    const float keep = std::exp2(into.maximum[i] - maximum);
    const float add = std::exp2(from.maximum[i] - maximum);
    into.maximum[i] = maximum;
    into.sum[i] = into.sum[i] * keep + from.sum[i] * add;
    for (int d = i * width; d < (i + 1) * width; ++d) {
      into.weighted[d] = into.weighted[d] * keep + from.weighted[d] * add;
    }
  }
}

void store_output(const AttentionProblem& problem, const AttentionTile& tile, const SoftmaxState& state) {
  const int group = problem.group;
  for (int i = 0; i < tile.num_tokens * group; ++i) {
    const int64_t token = tile.first_token + i / group;
    const int64_t offset = (token * problem.num_heads + tile.kv_head * group + i % group) * problem.head_dim;
    for (int d = 0; d < problem.head_dim; ++d) {
      const float element = state.weighted[i * problem.head_dim + d] / state.sum[i];
      store_element(problem.output, offset + d, problem.query_type, element);
    }
  }
}

}  // namespace

const AttentionKernel kPortableAttention{
    /*tile_queries=*/16, scratch_floats, load_queries, attend, merge, store_output};

}  // namespace pelton
