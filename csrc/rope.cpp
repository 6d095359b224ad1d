// Rotary embedding and KV cache writes: the loop over tokens, the portable kernel, the binding to Python.
#include "rope.h"

#include <algorithm>
#include <atomic>
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

constexpr int64_t kTokensPerItem = 16;  // neighbours in a page share the cache lines of its transposed keys

int64_t bytes_of(ElementType type) { return type == ElementType::kBFloat16 ? 2 : 4; }

const std::byte* head_at(const HeadsView& heads, ElementType type, int64_t token, int64_t head) {
  return static_cast<const std::byte*>(heads.data) +
         (token * heads.token_stride + head * heads.head_stride) * bytes_of(type);
}

template <typename Element>
void rotate_portable(const RopeCall& call, const Element* from, int rotary_dim, const float* cos_sin, float* rotated) {
  const int half = rotary_dim / 2;
  for (int i = 0; i < half; ++i) {
    const float first = to_float(from[i]), second = to_float(from[half + i]);
    const float cosine = cos_sin[i], sine = cos_sin[half + i];
    rotated[i] = first * cosine - second * sine;
    rotated[half + i] = second * cosine + first * sine;
  }
  for (int d = rotary_dim; d < call.head_dim; ++d) rotated[d] = to_float(from[d]);
}

void rotate(const RopeCall& call, const void* from, int rotary_dim, const float* cos_sin, float* rotated) {
  if (call.type == ElementType::kBFloat16) {
    rotate_portable(call, static_cast<const BFloat16*>(from), rotary_dim, cos_sin, rotated);
  } else {
    rotate_portable(call, static_cast<const float*>(from), rotary_dim, cos_sin, rotated);
  }
}

void convert(const RopeCall& call, const float* rotated, ElementType type, void* to) {
  for (int d = 0; d < call.head_dim; ++d) {
    if (type == ElementType::kBFloat16) {
      store(static_cast<BFloat16*>(to) + d, rotated[d]);
    } else {
      store(static_cast<float*>(to) + d, rotated[d]);
    }
  }
}

// One thread's pass over tokens. `rotated` and `converted` are one head each.
class TokenWriter {
 public:
  TokenWriter(const RopeCall& call, const RopeKernel& kernel)
      : call_(call),
        kernel_(kernel),
        memory_(2 * call.head_dim + kAlignedFloats),
        rotated_(memory_.data() + (kAlignedFloats - reinterpret_cast<uintptr_t>(memory_.data()) / 4 % kAlignedFloats)),
        converted_(rotated_ + call.head_dim) {}

  void write_queries(int64_t token) const {
    const auto& heads = call_.query;
    for (int head = 0; head < heads.num_heads; ++head) {
      kernel_.rotate(call_, head_at(heads, call_.type, token, head), call_.rotary_dim, angles(token), rotated_);
      const int64_t offset = (token * heads.num_heads + head) * call_.head_dim * bytes_of(call_.type);
      kernel_.convert(call_, rotated_, call_.type, static_cast<std::byte*>(call_.rotated_query) + offset);
    }
  }

  // Inside a page the cache holds 4 bytes of a key at a time, page_size keys side by side.
  void write_key(int64_t token, int head) const {
    kernel_.rotate(call_, head_at(call_.key, call_.type, token, head), call_.rotary_dim, angles(token), rotated_);
    kernel_.convert(call_, rotated_, call_.cache_type, converted_);
    const int64_t bytes = bytes_of(call_.cache_type);
    const int64_t page = call_.slots[token] / call_.page_size, offset = call_.slots[token] % call_.page_size;
    std::byte* to = static_cast<std::byte*>(call_.key_cache) + page * call_.key_page_stride * bytes +
                    head_offset(head) * bytes + offset * 4;
    const int64_t step = int64_t{call_.page_size} * 4;
    const int64_t num_chunks = call_.head_dim * bytes / 4;
    for (int64_t chunk = 0; chunk < num_chunks; ++chunk) std::memcpy(to + chunk * step, converted_ + chunk, 4);
  }

  void write_value(int64_t token, int head) const {
    kernel_.rotate(call_, head_at(call_.value, call_.type, token, head), 0, nullptr, rotated_);
    const int64_t page = call_.slots[token] / call_.page_size, offset = call_.slots[token] % call_.page_size;
    const int64_t element = page * call_.value_page_stride + head_offset(head) + offset * call_.head_dim;
    kernel_.convert(call_, rotated_, call_.cache_type,
                    static_cast<std::byte*>(call_.value_cache) + element * bytes_of(call_.cache_type));
  }

 private:
  static constexpr std::size_t kAlignedFloats = 16;

  const float* angles(int64_t token) const {
    return call_.rotary_dim == 0 ? nullptr : call_.cos_sin + call_.positions[token] * call_.rotary_dim;
  }

  int64_t head_offset(int head) const { return int64_t{head} * call_.page_size * call_.head_dim; }

  const RopeCall& call_;
  const RopeKernel& kernel_;
  std::vector<float> memory_;
  float* rotated_;
  float* converted_;
};

void write_tokens(const RopeCall& call, const TokenWriter& writer, int64_t begin, int64_t end) {
  for (int64_t token = begin; token < end; ++token) writer.write_queries(token);
  for (int head = 0; head < call.key.num_heads; ++head) {
    for (int64_t token = begin; token < end; ++token) {
      if (call.slots[token] < 0) continue;
      writer.write_key(token, head);
      writer.write_value(token, head);
    }
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
                            uintptr_t positions, uintptr_t key_cache, uintptr_t value_cache, uintptr_t slots,
                            int64_t num_tokens, int num_heads, int num_kv_heads, int head_dim, int rotary_dim,
                            int page_size, int64_t query_token_stride, int64_t query_head_stride,
                            int64_t key_token_stride, int64_t key_head_stride, int64_t value_token_stride,
                            int64_t value_head_stride, int64_t key_page_stride, int64_t value_page_stride, int type,
                            int cache_type) {
  const RopeCall call{
      .query = view(query, query_token_stride, query_head_stride, num_heads),
      .key = view(key, key_token_stride, key_head_stride, num_kv_heads),
      .value = view(value, value_token_stride, value_head_stride, num_kv_heads),
      .rotated_query = reinterpret_cast<void*>(rotated_query),
      .cos_sin = reinterpret_cast<const float*>(cos_sin),
      .positions = reinterpret_cast<const int64_t*>(positions),
      .key_cache = reinterpret_cast<void*>(key_cache),
      .value_cache = reinterpret_cast<void*>(value_cache),
      .slots = reinterpret_cast<const int64_t*>(slots),
      .num_tokens = num_tokens,
      .head_dim = head_dim,
      .rotary_dim = rotary_dim,
      .page_size = page_size,
      .key_page_stride = key_page_stride,
      .value_page_stride = value_page_stride,
      .type = static_cast<ElementType>(type),
      .cache_type = static_cast<ElementType>(cache_type),
  };
  submit([call, kernel = &choose_kernel()] {
    rope_and_cache(call, *kernel);
    return true;
  });
}

void write_kv_binding(uintptr_t key, uintptr_t value, uintptr_t key_cache, uintptr_t value_cache, uintptr_t slots,
                      int64_t num_tokens, int num_kv_heads, int head_dim, int page_size, int64_t key_token_stride,
                      int64_t key_head_stride, int64_t value_token_stride, int64_t value_head_stride,
                      int64_t key_page_stride, int64_t value_page_stride, int type, int cache_type) {
  rope_and_cache_binding(0, key, value, 0, 0, 0, key_cache, value_cache, slots, num_tokens, 0, num_kv_heads, head_dim,
                         0, page_size, 0, 0, key_token_stride, key_head_stride, value_token_stride, value_head_stride,
                         key_page_stride, value_page_stride, type, cache_type);
}

}  // namespace

const RopeKernel kPortableRope{rotate, convert};

void rope_and_cache(const RopeCall& call, const RopeKernel& kernel) {
  std::atomic<int64_t> next{0};
  run_slots(call.num_tokens > kTokensPerItem ? num_threads() : 1, [&](int) {
    const TokenWriter writer(call, kernel);
    for (int64_t begin = next.fetch_add(kTokensPerItem, std::memory_order_relaxed); begin < call.num_tokens;
         begin = next.fetch_add(kTokensPerItem, std::memory_order_relaxed)) {
      write_tokens(call, writer, begin, std::min(begin + kTokensPerItem, call.num_tokens));
    }
  });
}

void register_rope(nb::module_& m) {
  m.def("rope_and_cache", &rope_and_cache_binding, nb::call_guard<nb::gil_scoped_release>());
  m.def("write_kv", &write_kv_binding, nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace pelton
