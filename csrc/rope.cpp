// Rotary embedding and KV cache writes: the loop over tokens, the portable kernel, the binding to Python.
#include "rope.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <vector>

#include <nanobind/nanobind.h>

#include "cpu_features.h"
#include "module.h"
#include "parallel.h"
#include "program.h"

namespace nb = nanobind;

namespace pelton {
namespace {

// Tokens that a thread takes at a time. Of a prompt, neighbours in a page share the cache lines of its transposed keys;
// the few tokens of a decode step lie in pages of their own and are shared out evenly.
constexpr int64_t kPromptTokens = 256;  // a call of this many is taken for one
constexpr int64_t kTokensPerItem = 16;
constexpr int64_t kScatteredTokensPerItem = 4;
constexpr int64_t kCacheLine = 64;

template <typename From, typename To>
void rotate_heads(const RopeCall& call, const HeadsView& heads, int64_t token, int rotary_dim, To* to) {
  const auto* from = reinterpret_cast<const From*>(heads_at(call, heads, token));
  const float* cosines = rotary_dim == 0 ? nullptr : call.cos_sin + call.positions[token] * rotary_dim;
  const int half = rotary_dim / 2;
  for (int head = 0; head < heads.num_heads; ++head, from += heads.head_stride, to += call.head_dim) {
    for (int i = 0; i < half; ++i) {
      const float first = to_float(from[i]), second = to_float(from[half + i]);
      const float cosine = cosines[i], sine = cosines[half + i];
      store(to + i, first * cosine - second * sine);
      store(to + half + i, second * cosine + first * sine);
    }
    for (int d = rotary_dim; d < call.head_dim; ++d) store(to + d, to_float(from[d]));
  }
}

void rotate(const RopeCall& call, const HeadsView& heads, int64_t token, int rotary_dim, ElementType type, void* to) {
  const bool from_bf16 = call.type == ElementType::kBFloat16, to_bf16 = type == ElementType::kBFloat16;
  if (from_bf16 && to_bf16) {
    rotate_heads<BFloat16>(call, heads, token, rotary_dim, static_cast<BFloat16*>(to));
  } else if (from_bf16) {
    rotate_heads<BFloat16>(call, heads, token, rotary_dim, static_cast<float*>(to));
  } else if (to_bf16) {
    rotate_heads<float>(call, heads, token, rotary_dim, static_cast<BFloat16*>(to));
  } else {
    rotate_heads<float>(call, heads, token, rotary_dim, static_cast<float*>(to));
  }
}

// Rounds to nearest even, which here is a sum with half of the last bit that stays, less one where that bit is even.
uint8_t to_float8(float value) {
  const float magnitude = std::fabs(value);
  if (!(magnitude >= kSmallestFloat8)) return 0;
  uint32_t bits;
  std::memcpy(&bits, &magnitude, sizeof bits);
  constexpr uint32_t kDropped = 20, kExponentDifference = 120u << 3;
  const uint32_t rounded = (bits + ((1u << (kDropped - 1)) - 1) + ((bits >> kDropped) & 1u)) >> kDropped;
  return static_cast<uint8_t>((rounded - kExponentDifference) | (std::signbit(value) ? 0x80u : 0u));
}

float quantize(const float* head, int head_dim, ElementType type, void* to) {
  float largest = 0;
  for (int d = 0; d < head_dim; ++d) {
    const float magnitude = std::fabs(head[d]);
    if (!(magnitude <= largest)) largest = magnitude;  // keeps a NaN
    if (std::isnan(largest)) break;
  }
  const float scale = largest / (type == ElementType::kInt8 ? kLargestInt8 : kLargestFloat8);
  const float inverse = scale < kSmallestScale ? 0.0f : 1.0f / scale;
  for (int d = 0; d < head_dim; ++d) {
    const float scaled = head[d] * inverse;
    if (type == ElementType::kFloat8) {
      static_cast<uint8_t*>(to)[d] = to_float8(scaled);
    } else {
      static_cast<int8_t*>(to)[d] = std::isfinite(scaled) ? static_cast<int8_t>(std::nearbyint(scaled)) : int8_t{0};
    }
  }
  return scale;
}

// One thread's pass over tokens.
class TokenWriter {
 public:
  TokenWriter(const RopeCall& call, const RopeKernel& kernel)
      : call_(call),
        kernel_(kernel),
        head_bytes_(int64_t{call.head_dim} * bytes_of(call.cache_type)),
        floats_(is_scaled(call.cache_type) ? call.key.num_heads * call.head_dim : 0),
        converted_(call.key.num_heads * head_bytes_) {}

  void write(int64_t token) {
    if (call_.query.num_heads > 0) {
      const int64_t offset = token * call_.query.num_heads * call_.head_dim * bytes_of(call_.type);
      kernel_.rotate(call_, call_.query, token, call_.rotary_dim, call_.type,
                     static_cast<std::byte*>(call_.rotated_query) + offset);
    }
    if (call_.slots[token] < 0) return;
    convert(call_.key, token, call_.rotary_dim, call_.key_scales);
    for (int head = 0; head < call_.key.num_heads; ++head) write_key(token, head);
    convert(call_.value, token, 0, call_.value_scales);
    for (int head = 0; head < call_.value.num_heads; ++head) write_value(token, head);
  }

  // Asks for the cache lines that the token's keys and values go to. A key alone touches head_dim / x of them, each a
  // miss where the page was last used a step ago. Inlined, since GCC takes a function of prefetches for one without
  // effect and drops its calls.
  [[gnu::always_inline]] void request_lines(int64_t token) const {
    if (call_.slots[token] < 0) return;
    const int64_t row_bytes = int64_t{call_.page_size} * 4;
    const int64_t value_bytes = int64_t{call_.head_dim} * 4;
    for (int head = 0; head < call_.key.num_heads; ++head) {
      const std::byte* key = key_slot(token, head);
      for (int64_t at = 0; at < head_bytes_; at += 4, key += row_bytes) __builtin_prefetch(key, 1, 2);
      const std::byte* value = value_slot(token, head);
      for (int64_t at = 0; at < value_bytes; at += kCacheLine) __builtin_prefetch(value + at, 1, 2);
    }
  }

 private:
  // The token's heads, turned and in the cache's type, to `converted_`; their scales to the cache.
  void convert(const HeadsView& heads, int64_t token, int rotary_dim, float* scales) {
    if (!is_scaled(call_.cache_type)) {
      kernel_.rotate(call_, heads, token, rotary_dim, call_.cache_type, converted_.data());
      return;
    }
    kernel_.rotate(call_, heads, token, rotary_dim, ElementType::kFloat32, floats_.data());
    float* scale = scales + page(token) * call_.scale_page_stride + offset(token);
    for (int head = 0; head < heads.num_heads; ++head, scale += call_.page_size) {
      *scale = kernel_.quantize(floats_.data() + head * call_.head_dim, call_.head_dim, call_.cache_type,
                                converted_.data() + head * head_bytes_);
    }
  }

  // Inside a page the cache holds 4 bytes of a key at a time, page_size keys side by side.
  void write_key(int64_t token, int head) const {
    const std::byte* from = converted_.data() + head * head_bytes_;
    std::byte* to = key_slot(token, head);
    const int64_t step = int64_t{call_.page_size} * 4;
    for (int64_t at = 0; at < head_bytes_; at += 4, to += step) std::memcpy(to, from + at, 4);
  }

  // x values stand side by side.
  void write_value(int64_t token, int head) const {
    const std::byte* from = converted_.data() + head * head_bytes_;
    std::byte* to = value_slot(token, head);
    switch (bytes_of(call_.cache_type)) {
      case 1:
        for (int d = 0; d < call_.head_dim; ++d) to[d * 4] = from[d];
        break;
      case 2:
        for (int d = 0; d < call_.head_dim; ++d) std::memcpy(to + d * 4, from + d * 2, 2);
        break;
      default:
        std::memcpy(to, from, head_bytes_);
    }
  }

  int64_t page(int64_t token) const { return call_.slots[token] / call_.page_size; }
  int64_t offset(int64_t token) const { return call_.slots[token] % call_.page_size; }
  int64_t head_start(int head) const { return head * call_.page_size * head_bytes_; }

  // The first 4 bytes of a token's key.
  std::byte* key_slot(int64_t token, int head) const {
    const int64_t start = page(token) * call_.key_page_stride * bytes_of(call_.cache_type) + head_start(head);
    return static_cast<std::byte*>(call_.key_cache) + start + offset(token) * 4;
  }

  // The first element of a token's value, which has one in every 4 bytes.
  std::byte* value_slot(int64_t token, int head) const {
    const int64_t bytes = bytes_of(call_.cache_type), width = 4 / bytes;
    const int64_t start = page(token) * call_.value_page_stride * bytes + head_start(head);
    const int64_t group = offset(token) / width, inside = offset(token) % width;
    return static_cast<std::byte*>(call_.value_cache) + start + group * call_.head_dim * 4 + inside * bytes;
  }

  const RopeCall& call_;
  const RopeKernel& kernel_;
  int64_t head_bytes_;                // of a head in the cache's type
  std::vector<float> floats_;         // the keys or values of a token, of the types with scales
  std::vector<std::byte> converted_;  // the same in the cache's type
};

void write_tokens(TokenWriter& writer, int64_t begin, int64_t end) {
  writer.request_lines(begin);
  for (int64_t token = begin; token < end; ++token) {
    if (token + 1 < end) writer.request_lines(token + 1);
    writer.write(token);
  }
}

const RopeKernel& choose_kernel() {
#if defined(__x86_64__)
  if (cpu_features().avx512) return kAvx512Rope;
  if (cpu_features().avx2) return kAvx2Rope;
#endif
  return kPortableRope;
}

HeadsView view(uintptr_t data, int64_t token_stride, int64_t head_stride, int num_heads) {
  return {reinterpret_cast<const void*>(data), token_stride, head_stride, num_heads};
}

void rope_and_cache_binding(uintptr_t query, uintptr_t key, uintptr_t value, uintptr_t rotated_query, uintptr_t cos_sin,
                            uintptr_t positions, uintptr_t key_cache, uintptr_t value_cache, uintptr_t key_scales,
                            uintptr_t value_scales, uintptr_t slots, int64_t num_tokens, int num_heads,
                            int num_kv_heads, int head_dim, int rotary_dim, int page_size, int64_t query_token_stride,
                            int64_t query_head_stride, int64_t key_token_stride, int64_t key_head_stride,
                            int64_t value_token_stride, int64_t value_head_stride, int64_t key_page_stride,
                            int64_t value_page_stride, int64_t scale_page_stride, int type, int cache_type) {
  const RopeCall call{
      .query = view(query, query_token_stride, query_head_stride, num_heads),
      .key = view(key, key_token_stride, key_head_stride, num_kv_heads),
      .value = view(value, value_token_stride, value_head_stride, num_kv_heads),
      .rotated_query = reinterpret_cast<void*>(rotated_query),
      .cos_sin = reinterpret_cast<const float*>(cos_sin),
      .positions = reinterpret_cast<const int64_t*>(positions),
      .key_cache = reinterpret_cast<void*>(key_cache),
      .value_cache = reinterpret_cast<void*>(value_cache),
      .key_scales = reinterpret_cast<float*>(key_scales),
      .value_scales = reinterpret_cast<float*>(value_scales),
      .slots = reinterpret_cast<const int64_t*>(slots),
      .num_tokens = num_tokens,
      .head_dim = head_dim,
      .rotary_dim = rotary_dim,
      .page_size = page_size,
      .key_page_stride = key_page_stride,
      .value_page_stride = value_page_stride,
      .scale_page_stride = scale_page_stride,
      .type = static_cast<ElementType>(type),
      .cache_type = static_cast<ElementType>(cache_type),
  };
  submit([call, kernel = &choose_kernel()] {
    rope_and_cache(call, *kernel);
    return true;
  });
}

void write_kv_binding(uintptr_t key, uintptr_t value, uintptr_t key_cache, uintptr_t value_cache, uintptr_t key_scales,
                      uintptr_t value_scales, uintptr_t slots, int64_t num_tokens, int num_kv_heads, int head_dim,
                      int page_size, int64_t key_token_stride, int64_t key_head_stride, int64_t value_token_stride,
                      int64_t value_head_stride, int64_t key_page_stride, int64_t value_page_stride,
                      int64_t scale_page_stride, int type, int cache_type) {
  rope_and_cache_binding(0, key, value, 0, 0, 0, key_cache, value_cache, key_scales, value_scales, slots, num_tokens, 0,
                         num_kv_heads, head_dim, 0, page_size, 0, 0, key_token_stride, key_head_stride,
                         value_token_stride, value_head_stride, key_page_stride, value_page_stride, scale_page_stride,
                         type, cache_type);
}

}  // namespace

const RopeKernel kPortableRope{rotate, quantize};

void rope_and_cache(const RopeCall& call, const RopeKernel& kernel) {
  const int64_t step = call.num_tokens < kPromptTokens ? kScatteredTokensPerItem : kTokensPerItem;
  std::atomic<int64_t> next{0};
  run_slots(call.num_tokens > step ? num_threads() : 1, [&](int) {
    TokenWriter writer(call, kernel);
    for (int64_t begin = next.fetch_add(step, std::memory_order_relaxed); begin < call.num_tokens;
         begin = next.fetch_add(step, std::memory_order_relaxed)) {
      write_tokens(writer, begin, std::min(begin + step, call.num_tokens));
    }
  });
}

void register_rope(nb::module_& m) {
  m.def("rope_and_cache", &rope_and_cache_binding, nb::call_guard<nb::gil_scoped_release>());
  m.def("write_kv", &write_kv_binding, nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace pelton
