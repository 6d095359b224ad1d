// Which instruction sets the kernels use: those that this machine has, within a limit that tests set.
#pragma once
#include <array>
#include <string_view>

namespace pelton {

// Levels of the limit. Each has the levels below it; a kernel asks for the features that it needs.
enum class InstructionSet : int { kPortable, kAvx2, kAvx512, kAvx512VnniBf16, kAmx };
inline constexpr std::array<std::string_view, 5> kInstructionSetNames{"portable", "avx2", "avx512", "avx512_vnni_bf16",
                                                                      "amx"};

struct CpuFeatures {
  bool avx2;         // AVX2, FMA and F16C
  bool avx512;       // avx2 plus F, BW, DQ and VL
  bool avx512_vnni;  // avx512 plus products of 8-bit integers
  bool avx512_bf16;  // avx512 plus BF16 products
  bool amx_bf16;     // AMX tiles with BF16 products, granted by the kernel to this process
};

// Those of this machine within the limit. Asked by every call of an operation, once a call.
const CpuFeatures& cpu_features();

// Whether this machine has anything of this level, whatever the limit.
bool has_instruction_set(InstructionSet level);

// From the next call of an operation on, kernels above `limit` are left alone; what is recorded already (program.h) may
// go on with them. Returns the former limit; kAmx is none.
InstructionSet limit_instruction_set(InstructionSet limit);

}  // namespace pelton
