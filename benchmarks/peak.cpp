// What this machine's cores can do at most, for benchmarks/products.py: products of registers and a sum over memory.
// Prints operations a second with VNNI and with BF16, those of one thread times their number, and bytes a second of all
// threads together.
#include <immintrin.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

namespace {

constexpr int kRegisters = 16;
constexpr int kRounds = 200'000;
constexpr int kRepetitions = 12;
constexpr std::size_t kBytes = std::size_t{512} << 20;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The shortest time that all threads take together for work(thread).
template <typename Work>
double shortest(int num_threads, const Work& work) {
  double best = 1e9;
  for (int repetition = 0; repetition < kRepetitions; ++repetition) {
    const double start = now();
    std::vector<std::thread> others;
    for (int thread = 1; thread < num_threads; ++thread) others.emplace_back(work, thread);
    work(0);
    for (auto& other : others) other.join();
    best = std::min(best, now() - start);
  }
  return best;
}

__attribute__((target("avx512f,avx512vnni"))) void multiply_bytes(int) {
  __m512i a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(5);
  for (int round = 0; round < kRounds; ++round) {
    asm volatile(
        "vpdpbusd %0,%1,%%zmm16\n vpdpbusd %0,%1,%%zmm17\n vpdpbusd %0,%1,%%zmm18\n vpdpbusd %0,%1,%%zmm19\n"
        "vpdpbusd %0,%1,%%zmm20\n vpdpbusd %0,%1,%%zmm21\n vpdpbusd %0,%1,%%zmm22\n vpdpbusd %0,%1,%%zmm23\n"
        "vpdpbusd %0,%1,%%zmm24\n vpdpbusd %0,%1,%%zmm25\n vpdpbusd %0,%1,%%zmm26\n vpdpbusd %0,%1,%%zmm27\n"
        "vpdpbusd %0,%1,%%zmm28\n vpdpbusd %0,%1,%%zmm29\n vpdpbusd %0,%1,%%zmm30\n vpdpbusd %0,%1,%%zmm31\n" ::"v"(a),
        "v"(b)
        : "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21", "xmm22", "xmm23", "xmm24", "xmm25", "xmm26", "xmm27",
          "xmm28", "xmm29", "xmm30", "xmm31");
  }
}

__attribute__((target("avx512f,avx512bf16"))) void multiply_bfloat16(int) {
  __m512i a = _mm512_set1_epi16(0x3f80), b = _mm512_setzero_si512();
  for (int round = 0; round < kRounds; ++round) {
    asm volatile(
        "vdpbf16ps %0,%1,%%zmm16\n vdpbf16ps %0,%1,%%zmm17\n vdpbf16ps %0,%1,%%zmm18\n vdpbf16ps %0,%1,%%zmm19\n"
        "vdpbf16ps %0,%1,%%zmm20\n vdpbf16ps %0,%1,%%zmm21\n vdpbf16ps %0,%1,%%zmm22\n vdpbf16ps %0,%1,%%zmm23\n"
        "vdpbf16ps %0,%1,%%zmm24\n vdpbf16ps %0,%1,%%zmm25\n vdpbf16ps %0,%1,%%zmm26\n vdpbf16ps %0,%1,%%zmm27\n"
        "vdpbf16ps %0,%1,%%zmm28\n vdpbf16ps %0,%1,%%zmm29\n vdpbf16ps %0,%1,%%zmm30\n vdpbf16ps %0,%1,%%zmm31\n" ::"v"(
            a),
        "v"(b)
        : "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21", "xmm22", "xmm23", "xmm24", "xmm25", "xmm26", "xmm27",
          "xmm28", "xmm29", "xmm30", "xmm31");
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int num_threads = argc > 1 ? std::atoi(argv[1]) : 1;
  // Threads that other processes hold up would lower what all do together.
  const double operations = 1.0 * kRegisters * kRounds * num_threads;
  const double vnni = __builtin_cpu_supports("avx512vnni") ? operations * 128 / shortest(1, multiply_bytes) : 0;
  const double bf16 =
      __builtin_cpu_supports("avx512bf16") ? operations * 64 / shortest(1, multiply_bfloat16) : 0;

  auto* memory = static_cast<uint64_t*>(std::aligned_alloc(std::size_t{2} << 20, kBytes));
  madvise(memory, kBytes, MADV_HUGEPAGE);
  std::fill(memory, memory + kBytes / 8, 1);
  const std::size_t share = kBytes / 8 / num_threads;
  const double seconds = shortest(num_threads, [&](int thread) {
    uint64_t sums[16] = {};
    const uint64_t* from = memory + thread * share;
    for (std::size_t i = 0; i + 16 <= share; i += 16) {
      for (int lane = 0; lane < 16; ++lane) sums[lane] += from[i + lane];
    }
    asm volatile("" ::"m"(sums));
  });
  std::printf("%.0f %.0f %.0f\n", vnni, bf16, kBytes / seconds);
  return 0;
}
