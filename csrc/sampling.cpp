// Sampling: the portable passes over the vocabulary, the filters, the distribution of rows over threads.
#include "sampling.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "cpu_features.h"
#include "module.h"
#include "parallel.h"

namespace nb = nanobind;

namespace pelton {
namespace {

constexpr int64_t kSerialLogits = 64 * 1024;  // fewer are not worth a second thread
// Candidates for top-k and top-p have at least this share of the largest weight; less, where that is not enough.
constexpr std::array<float, 6> kCandidateShares{1e-1f, 1e-2f, 1e-3f, 1e-4f, 1e-6f, 0.0f};
constexpr int64_t kGatherRoom = 16;

void mask_logits(float* logits, int64_t size, const uint32_t* allowed) {
  for (int64_t i = 0; i < size; ++i) {
    const bool is_allowed = (allowed[i / 32] >> (i % 32)) & 1;
    if (!is_allowed && !std::isnan(logits[i])) logits[i] = -std::numeric_limits<float>::infinity();
  }
}

float largest_logit(const float* logits, int64_t size) {
  float largest = -std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < size; ++i) {
    if (std::isnan(logits[i])) return logits[i];
    largest = std::max(largest, logits[i]);
  }
  return largest;
}

void weigh_logits(const float* logits, int64_t size, float largest, float inverse_temperature, float* weights,
                  double* block_sums) {
  for (int64_t begin = 0; begin < size; begin += kWeightBlock) {
    double sum = 0.0;
    for (int64_t i = begin; i < std::min(begin + kWeightBlock, size); ++i) {
      weights[i] = std::exp((logits[i] - largest) * inverse_temperature);
      sum += weights[i];
    }
    block_sums[begin / kWeightBlock] = sum;
  }
}

int64_t gather_weights(const float* weights, int64_t size, float share, int32_t* tokens, float* gathered) {
  int64_t count = 0;
  for (int64_t token = 0; token < size; ++token) {
    if (weights[token] < share || weights[token] <= 0.0f) continue;
    tokens[count] = static_cast<int32_t>(token);
    gathered[count++] = weights[token];
  }
  return count;
}

struct Candidate {
  float weight;
  int32_t token;
};

// What one thread needs for a row; kept from call to call.
struct Scratch {
  std::vector<float> weights;
  std::vector<double> block_sums;
  std::vector<int32_t> gathered_tokens;
  std::vector<float> gathered_weights;
  std::vector<Candidate> candidates;
};

// Chooses the token of one row. `largest` is finite.
class RowSampler {
 public:
  RowSampler(const float* logits, int64_t size, float largest, const SamplingControls& controls,
             const SamplingKernel& kernel, Scratch& scratch)
      : size_(size), controls_(controls), kernel_(kernel), scratch_(scratch) {
    scratch.weights.resize(size);
    scratch.block_sums.resize((size + kWeightBlock - 1) / kWeightBlock);
    kernel.weigh(logits, size, largest, static_cast<float>(1.0 / controls.temperature), scratch.weights.data(),
                 scratch.block_sums.data());
    for (const double sum : scratch.block_sums) total_ += sum;
  }

  int64_t sample() {
    const bool has_top_k = controls_.top_k > 0 && controls_.top_k < static_cast<double>(size_);
    if (!has_top_k && controls_.top_p >= 1.0 && controls_.min_p <= 0.0) return sample_all();
    gather_candidates(has_top_k);
    return sample_candidates(num_kept(has_top_k));
  }

 private:
  // Inverse transform sampling over the whole vocabulary, in its order.
  int64_t sample_all() const {
    double target = controls_.uniform * total_;
    std::size_t block = 0;
    while (block + 1 < scratch_.block_sums.size() && target >= scratch_.block_sums[block]) {
      target -= scratch_.block_sums[block++];
    }
    const int64_t begin = static_cast<int64_t>(block) * kWeightBlock, end = std::min(begin + kWeightBlock, size_);
    int64_t last = begin;  // rounding may leave the target just past the end; then it is the last one possible
    for (int64_t token = begin; token < end; ++token) {
      if (scratch_.weights[token] <= 0.0f) continue;
      last = token;
      target -= scratch_.weights[token];
      if (target < 0.0) break;
    }
    return last;
  }

  // The most likely tokens, in order: so many that the filters can only keep some of them.
  void gather_candidates(bool has_top_k) {
    // After top-k, top-p is a share of all k, also of those that min-p drops.
    const bool cut_by_min_p = !(has_top_k && controls_.top_p < 1.0);
    const float min_share = cut_by_min_p ? static_cast<float>(controls_.min_p) : 0.0f;
    for (const float share : kCandidateShares) {
      const double sum = gather_above(std::max(share, min_share));
      const bool enough = has_top_k ? static_cast<double>(scratch_.candidates.size()) >= controls_.top_k
                                    : controls_.top_p < 1.0 && sum >= controls_.top_p * total_;
      if (enough || share <= min_share) break;
    }
    const auto comes_first = [](const Candidate& a, const Candidate& b) {
      return a.weight != b.weight ? a.weight > b.weight : a.token < b.token;
    };
    auto& candidates = scratch_.candidates;
    if (has_top_k && static_cast<double>(candidates.size()) > controls_.top_k) {
      const auto k = static_cast<std::ptrdiff_t>(controls_.top_k);
      std::nth_element(candidates.begin(), candidates.begin() + k, candidates.end(), comes_first);
      candidates.resize(static_cast<std::size_t>(k));
    }
    std::sort(candidates.begin(), candidates.end(), comes_first);
  }

  double gather_above(float share) {
    scratch_.gathered_tokens.resize(size_ + kGatherRoom);
    scratch_.gathered_weights.resize(size_ + kGatherRoom);
    const int64_t count = kernel_.gather(scratch_.weights.data(), size_, share, scratch_.gathered_tokens.data(),
                                         scratch_.gathered_weights.data());
    scratch_.candidates.resize(count);
    double sum = 0.0;
    for (int64_t i = 0; i < count; ++i) {
      scratch_.candidates[i] = {scratch_.gathered_weights[i], scratch_.gathered_tokens[i]};
      sum += scratch_.gathered_weights[i];
    }
    return sum;
  }

  // Candidates that top-p and min-p leave, at least one.
  std::size_t num_kept(bool has_top_k) const {
    const auto& candidates = scratch_.candidates;
    double total = total_;
    if (has_top_k) {
      total = 0.0;
      for (const Candidate& candidate : candidates) total += candidate.weight;
    }
    std::size_t kept = 0;
    for (double before = 0.0; kept < candidates.size(); before += candidates[kept++].weight) {
      if (controls_.top_p < 1.0 && before >= controls_.top_p * total) break;
      if (candidates[kept].weight < static_cast<float>(controls_.min_p)) break;
    }
    return std::max<std::size_t>(kept, 1);
  }

  int64_t sample_candidates(std::size_t kept) const {
    double sum = 0.0;
    for (std::size_t i = 0; i < kept; ++i) sum += scratch_.candidates[i].weight;
    double target = controls_.uniform * sum;
    for (std::size_t i = 0; i + 1 < kept; ++i) {
      target -= scratch_.candidates[i].weight;
      if (target < 0.0) return scratch_.candidates[i].token;
    }
    return scratch_.candidates[kept - 1].token;
  }

  int64_t size_;
  const SamplingControls& controls_;
  const SamplingKernel& kernel_;
  Scratch& scratch_;
  double total_ = 0.0;
};

const SamplingKernel& choose_kernel() {
#if defined(__x86_64__)
  if (cpu_features().avx512) return kAvx512Sampling;
  if (cpu_features().avx2) return kAvx2Sampling;
#endif
  return kPortableSampling;
}

// [num_rows][vocabulary] logits, rows row_stride apart -> tokens[num_rows], and the largest logit of each row. A row whose
// largest logit is not finite has no token: 0.
void sample_binding(uintptr_t logits, int64_t row_stride, int64_t num_rows, int64_t vocabulary, uintptr_t controls,
                    uintptr_t tokens, uintptr_t largest) {
  const auto* all_logits = reinterpret_cast<const float*>(logits);
  const auto* all_controls = reinterpret_cast<const SamplingControls*>(controls);
  auto* all_tokens = reinterpret_cast<int64_t*>(tokens);
  auto* all_largest = reinterpret_cast<float*>(largest);
  const SamplingKernel& kernel = choose_kernel();
  const auto sample_row = [&](int64_t row) {
    thread_local Scratch scratch;
    const float* row_logits = all_logits + row * row_stride;
    const float top = kernel.largest(row_logits, vocabulary);
    all_largest[row] = top;
    all_tokens[row] = 0;
    if (!std::isfinite(top)) return;
    if (all_controls[row].temperature <= 0.0) {
      all_tokens[row] = std::find(row_logits, row_logits + vocabulary, top) - row_logits;
    } else {
      all_tokens[row] = RowSampler(row_logits, vocabulary, top, all_controls[row], kernel, scratch).sample();
    }
  };
  if (num_rows * vocabulary < kSerialLogits) {
    for (int64_t row = 0; row < num_rows; ++row) sample_row(row);
  } else {
    run_tasks(num_rows, sample_row);
  }
}

void mask_binding(uintptr_t logits, int64_t vocabulary, uintptr_t allowed) {
  choose_kernel().mask(reinterpret_cast<float*>(logits), vocabulary, reinterpret_cast<const uint32_t*>(allowed));
}

}  // namespace

const SamplingKernel kPortableSampling{mask_logits, largest_logit, weigh_logits, gather_weights};

void register_sampling(nb::module_& m) {
  m.def("sample", &sample_binding, nb::call_guard<nb::gil_scoped_release>());
  m.def("mask_logits", &mask_binding);
}

}  // namespace pelton
