// Choosing tokens from logits. A row's token depends on its own logits and controls only: every sum over the
// vocabulary runs in blocks of a fixed size and in a fixed order.
#pragma once
#include <cstdint>

namespace pelton {

constexpr int64_t kWeightBlock = 256;  // logits to a partial sum

// How one row is sampled. All values are checked by the caller.
struct SamplingControls {
  double temperature;  // 0: take the first of the largest logits
  double top_k;        // a whole number; 0: off
  double top_p;        // 1: off
  double min_p;        // 0: off
  double uniform;      // in [0, 1)
};

// The largest of `size` logits; NaN if any is NaN. No alignment is needed.
using LargestFunction = float (*)(const float* logits, int64_t size);
// weights[i] = exp((logits[i] - largest) / temperature), and their sum over each block, in order, in double.
using WeighFunction = void (*)(const float* logits, int64_t size, float largest, float inverse_temperature,
                               float* weights, double* block_sums);

// Appends index and value of the weights that are at least `share` and not 0, in order; returns how many. Both outputs have
// room for size + 16.
using GatherFunction = int64_t (*)(const float* weights, int64_t size, float share, int32_t* tokens, float* gathered);

// Logits whose bit is 0 in `allowed` (32 to a word, the lowest bit first) become -inf. NaNs stay.
using MaskFunction = void (*)(float* logits, int64_t size, const uint32_t* allowed);

struct SamplingKernel {
  MaskFunction mask;
  LargestFunction largest;
  WeighFunction weigh;
  GatherFunction gather;
};

extern const SamplingKernel kPortableSampling;
#if defined(__x86_64__)
extern const SamplingKernel kAvx2Sampling;
extern const SamplingKernel kAvx512Sampling;
#endif

}  // namespace pelton
