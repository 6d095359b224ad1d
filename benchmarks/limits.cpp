// What the processor can do at most: bytes read per second from memory, multiply-adds per second out of registers.
//
//     limits (read | bf16 | int8 | fp32) THREADS      prints one number: bytes or operations (2 a multiply-add) a second
//
// Exit code 3: this build has no such instruction. Compiled where it runs, with -march=native.

#include <immintrin.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRepetitions = 9;
constexpr std::size_t kBufferBytes = std::size_t{512} << 20;  // many times any last-level cache of a small machine
constexpr int kRounds = 400'000;                              // of one register loop: some 10 ms
constexpr int kAccumulators = 12;                             // latency times issue width, with some to spare
constexpr int kNoInstruction = 3;

// The best of several repetitions; all threads start a repetition together, and it ends with the last of them.
template <typename Body>
double best_seconds(int threads, const Body& body) {
    std::barrier gate(threads);
    std::vector<double> seconds(kRepetitions, 0.0);
    std::vector<std::thread> pool;
    for (int thread = 0; thread < threads; ++thread) {
        pool.emplace_back([&, thread] {
            for (double& elapsed : seconds) {
                gate.arrive_and_wait();
                const auto begun = Clock::now();
                body(thread);
                gate.arrive_and_wait();
                if (thread == 0) elapsed = std::chrono::duration<double>(Clock::now() - begun).count();
            }
        });
    }
    for (std::thread& each : pool) each.join();
    return *std::min_element(seconds.begin(), seconds.end());
}

// Keeps a value in a register and hides from the compiler that nobody reads it.
template <typename Vector>
inline void keep(Vector& value) {
    asm volatile("" : "+x"(value));
}

double read_bandwidth(int threads) {
    void* memory = mmap(nullptr, kBufferBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) std::exit(1);
    madvise(memory, kBufferBytes, MADV_HUGEPAGE);
    std::memset(memory, 1, kBufferBytes);
    using Line = std::uint64_t __attribute__((vector_size(32)));
    const std::size_t lines = kBufferBytes / sizeof(Line) / threads;
    const auto body = [&](int thread) {
        const Line* data = static_cast<const Line*>(memory) + thread * lines;
        Line sums[8] = {};
        for (std::size_t index = 0; index + 8 <= lines; index += 8) {
            for (int lane = 0; lane < 8; ++lane) sums[lane] += data[index + lane];
        }
        asm volatile("" : : "m"(sums));
    };
    const double seconds = best_seconds(threads, body);
    munmap(memory, kBufferBytes);
    return static_cast<double>(lines * sizeof(Line) * threads) / seconds;
}

// Runs step(accumulator) kRounds times on each of the accumulators; `operations` is what one step computes.
template <typename Vector, typename Step>
double register_peak(int threads, double operations, const Step& step) {
    const auto body = [&](int) {
        Vector sums[kAccumulators] = {};
        for (int round = 0; round < kRounds; ++round) {
            for (Vector& sum : sums) {
                sum = step(sum);
                keep(sum);
            }
        }
    };
    return operations * kRounds * kAccumulators * threads / best_seconds(threads, body);
}

#if defined(__AMX_TILE__)
constexpr long kArchRequestPermission = 0x1023, kTileData = 18;

struct alignas(64) TileShapes {
    std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
    std::uint16_t bytes_per_row[16] = {};
    std::uint8_t rows[16] = {};
};

// Four result tiles by two tiles of each operand, all full: 16 rows of 64 bytes. `pairs` multiply-adds a product.
template <typename Products>
double tile_peak(int threads, double operations, const Products& products) {
    if (syscall(SYS_arch_prctl, kArchRequestPermission, kTileData) != 0) std::exit(kNoInstruction);
    const auto body = [&](int) {
        TileShapes shapes;
        std::fill_n(shapes.bytes_per_row, 8, 64);
        std::fill_n(shapes.rows, 8, 16);
        _tile_loadconfig(&shapes);
        for (int round = 0; round < kRounds; ++round) products();
        _tile_release();
    };
    return 4 * operations * kRounds * threads / best_seconds(threads, body);
}
#endif

double bf16_peak(int threads) {
#if defined(__AMX_BF16__)
    return tile_peak(threads, 2.0 * 16 * 16 * 32, [] {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    });
#elif defined(__AVX512BF16__)
    __m512i left = _mm512_setzero_si512(), right = left;
    keep(left);
    keep(right);
    const auto a = reinterpret_cast<__m512bh>(left), b = reinterpret_cast<__m512bh>(right);
    return register_peak<__m512>(threads, 64, [=](__m512 sum) { return _mm512_dpbf16_ps(sum, a, b); });
#else
    (void)threads;
    std::exit(kNoInstruction);
#endif
}

double int8_peak(int threads) {
#if defined(__AMX_INT8__)
    return tile_peak(threads, 2.0 * 16 * 16 * 64, [] {
        _tile_dpbusd(0, 4, 6);
        _tile_dpbusd(1, 4, 7);
        _tile_dpbusd(2, 5, 6);
        _tile_dpbusd(3, 5, 7);
    });
#elif defined(__AVX512VNNI__)
    __m512i a = _mm512_setzero_si512(), b = a;
    keep(a);
    keep(b);
    return register_peak<__m512i>(threads, 128, [=](__m512i sum) { return _mm512_dpbusd_epi32(sum, a, b); });
#elif defined(__AVX2__)
    __m256i a = _mm256_setzero_si256(), b = a, ones = a;
    keep(a);
    keep(b);
    keep(ones);
    return register_peak<__m256i>(threads, 64, [=](__m256i sum) {
        __m256i left = a;
        keep(left);  // else the product, the same every time, would leave the loop
        return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(left, b), ones));
    });
#else
    (void)threads;
    std::exit(kNoInstruction);
#endif
}

double fp32_peak(int threads) {
#if defined(__AVX512F__)
    __m512 a = _mm512_setzero_ps(), b = a;
    keep(a);
    keep(b);
    return register_peak<__m512>(threads, 32, [=](__m512 sum) { return _mm512_fmadd_ps(a, b, sum); });
#elif defined(__FMA__)
    __m256 a = _mm256_setzero_ps(), b = a;
    keep(a);
    keep(b);
    return register_peak<__m256>(threads, 16, [=](__m256 sum) { return _mm256_fmadd_ps(a, b, sum); });
#else
    (void)threads;
    std::exit(kNoInstruction);
#endif
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 3) return 2;
    const std::string what = argv[1];
    const int threads = std::max(1, std::atoi(argv[2]));
    double result = 0.0;
    if (what == "read") {
        result = read_bandwidth(threads);
    } else if (what == "bf16") {
        result = bf16_peak(threads);
    } else if (what == "int8") {
        result = int8_peak(threads);
    } else if (what == "fp32") {
        result = fp32_peak(threads);
    } else {
        return 2;
    }
    std::printf("%.4e\n", result);
}
