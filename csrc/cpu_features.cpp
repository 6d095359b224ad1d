#include "cpu_features.h"

#include <atomic>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace pelton {
namespace {

#if defined(__x86_64__)
// Linux gives AMX state to a process that asks for it (arch_prctl ARCH_REQ_XCOMP_PERM, feature 18 = tile data).
bool request_amx() {
  constexpr int kArchReqXcompPerm = 0x1023;
  constexpr int kXfeatureXtiledata = 18;
  return syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureXtiledata) == 0;
}

// CPUID leaf 7, subleaf 0, EDX: bit 24 AMX-TILE, bit 22 AMX-BF16 (Intel SDM volume 2, CPUID).
bool has_amx_bf16() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  return (edx & (1u << 24)) != 0 && (edx & (1u << 22)) != 0;
}

CpuFeatures detect() {
  CpuFeatures features{};
  __builtin_cpu_init();
  features.avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  features.avx512 = features.avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                    __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  features.avx512_vnni = features.avx512 && __builtin_cpu_supports("avx512vnni");
  features.avx512_bf16 = features.avx512 && __builtin_cpu_supports("avx512bf16");
  features.amx_bf16 = features.avx512_bf16 && has_amx_bf16() && request_amx();
  return features;
}
#else
CpuFeatures detect() { return CpuFeatures{}; }
#endif

CpuFeatures within(CpuFeatures features, InstructionSet limit) {
  features.avx2 = features.avx2 && limit >= InstructionSet::kAvx2;
  features.avx512 = features.avx512 && limit >= InstructionSet::kAvx512;
  features.avx512_vnni = features.avx512_vnni && limit >= InstructionSet::kAvx512VnniBf16;
  features.avx512_bf16 = features.avx512_bf16 && limit >= InstructionSet::kAvx512VnniBf16;
  features.amx_bf16 = features.amx_bf16 && limit >= InstructionSet::kAmx;
  return features;
}

constexpr std::size_t kNumLevels = kInstructionSetNames.size();

// What may be used under each limit.
const std::array<CpuFeatures, kNumLevels>& features_by_limit() {
  static const auto table = [] {
    const CpuFeatures features = detect();
    std::array<CpuFeatures, kNumLevels> levels;
    for (std::size_t level = 0; level < kNumLevels; ++level) {
      levels[level] = within(features, static_cast<InstructionSet>(level));
    }
    return levels;
  }();
  return table;
}

std::atomic<InstructionSet> current_limit{InstructionSet::kAmx};

}  // namespace

const CpuFeatures& cpu_features() {
  return features_by_limit()[static_cast<std::size_t>(current_limit.load(std::memory_order_relaxed))];
}

bool has_instruction_set(InstructionSet level) {
  const CpuFeatures& machine = features_by_limit().back();
  switch (level) {
    case InstructionSet::kPortable: return true;
    case InstructionSet::kAvx2: return machine.avx2;
    case InstructionSet::kAvx512: return machine.avx512;
    case InstructionSet::kAvx512VnniBf16: return machine.avx512_vnni || machine.avx512_bf16;
    case InstructionSet::kAmx: return machine.amx_bf16;
  }
  return false;
}

InstructionSet limit_instruction_set(InstructionSet limit) { return current_limit.exchange(limit); }

}  // namespace pelton
