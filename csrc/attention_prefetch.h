// What the vector kernels of attention ask memory for in advance.
#pragma once
#include "attention.h"

namespace pelton {
// Internal linkage: included by files compiled for different instruction sets.
namespace {

// GCC takes a function of nothing but prefetches for one without effect and drops its calls: these must be inlined.
[[gnu::always_inline]] inline void prefetch_far(const std::byte* line) { __builtin_prefetch(line, 0, 2); }

// Asks for the keys of the segment that comes next while the values of this one are added up. They go to the second
// level of cache, which takes more outstanding lines than the first and has room for a segment.
class KeysAhead {
 public:
  KeysAhead(const AttentionProblem& problem, const AttentionSegment& segment, const AttentionSegment& next)
      : next_(next),
        row_bytes_(std::size_t(problem.page_size) * 4),
        rows_per_group_(problem.head_dim / kKeyVector),
        first_vector_(segment.first_vector),
        ratio_((next.end_vector - next.first_vector + segment.end_vector - segment.first_vector - 1) /
               (segment.end_vector - segment.first_vector)) {}

  // To be called for each group of neighbouring keys (x of them, see attention.h) of each vector of the segment.
  [[gnu::always_inline]] void request(int vector, int group) const {
    const int first = next_.first_vector + (vector - first_vector_) * ratio_;
    for (int v = first; v < first + ratio_ && v < next_.end_vector; ++v) {
      const std::byte* row = next_.keys[v] + group * rows_per_group_ * row_bytes_;
      for (int i = 0; i < rows_per_group_; ++i) prefetch_far(row + i * row_bytes_);
    }
  }

 private:
  const AttentionSegment& next_;
  std::size_t row_bytes_;
  int rows_per_group_;
  int first_vector_, ratio_;
};

}  // namespace
}  // namespace pelton
