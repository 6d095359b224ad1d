#include "cpu_features.h"

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
  features.avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                    __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                    __builtin_cpu_supports("fma");
  features.avx512_vnni =
      features.avx512 && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("f16c");
  features.avx512_bf16 = features.avx512 && __builtin_cpu_supports("avx512bf16");
  features.amx_bf16 = features.avx512_bf16 && has_amx_bf16() && request_amx();
  return features;
}
#else
CpuFeatures detect() { return CpuFeatures{}; }
#endif

}  // namespace

const CpuFeatures& cpu_features() {
  static const CpuFeatures features = detect();
  return features;
}

}  // namespace pelton
