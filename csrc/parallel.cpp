// The threads behind parallel.h.
#include "parallel.h"

#include <omp.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace pelton {
namespace {

// A worker looks for work this long before it sleeps: longer than the gaps between the operations of a step,
// shorter than those between steps.
constexpr auto kSpinTime = std::chrono::microseconds(200);
constexpr int kPausesPerLook = 16;

void pause_briefly() {
#if defined(__x86_64__)
  for (int i = 0; i < kPausesPerLook; ++i) _mm_pause();
#else
  std::this_thread::yield();
#endif
}

class WorkerPool {
 public:
  void run(int num_slots, int num_workers, void (*function)(void*, int), void* context) {
    start_workers(num_workers);
    function_ = function;
    context_ = context;
    unfinished_.store(num_slots, std::memory_order_relaxed);
    const uint32_t generation = generation_.load(std::memory_order_relaxed) + 1;
    // From here on a slot can be claimed; function and context stay as they are until all slots have finished.
    unclaimed_.store(ticket(generation, num_slots), std::memory_order_release);
    generation_.store(generation, std::memory_order_seq_cst);
    generation_.notify_all();
    work();
    for (int looks = 0; unfinished_.load(std::memory_order_acquire) > 0; ++looks) {
      looks < 100 ? pause_briefly() : std::this_thread::yield();
    }
  }

  std::mutex& mutex() { return mutex_; }

 private:
  // Generation and number of unclaimed slots in one word: who claims by compare-and-exchange claims from the job
  // that he saw, however long he was away.
  static uint64_t ticket(uint32_t generation, int num_slots) {
    return uint64_t{generation} << 32 | static_cast<uint32_t>(num_slots);
  }

  void work() {
    uint64_t seen = unclaimed_.load(std::memory_order_acquire);
    while (static_cast<uint32_t>(seen) > 0) {
      if (!unclaimed_.compare_exchange_weak(seen, seen - 1, std::memory_order_acq_rel)) continue;
      function_(context_, static_cast<int>(static_cast<uint32_t>(seen) - 1));
      unfinished_.fetch_sub(1, std::memory_order_release);
      seen = unclaimed_.load(std::memory_order_acquire);
    }
  }

  void worker() {
    for (uint32_t seen = 0;;) {
      const auto deadline = std::chrono::steady_clock::now() + kSpinTime;
      while (generation_.load(std::memory_order_acquire) == seen) {
        pause_briefly();
        if (std::chrono::steady_clock::now() > deadline) generation_.wait(seen, std::memory_order_acquire);
      }
      seen = generation_.load(std::memory_order_acquire);
      work();
    }
  }

  // Workers live as long as the process. A forked child has none, and its callers do all the work themselves.
  void start_workers(int num_workers) {
    for (; num_started_ < num_workers; ++num_started_) std::thread(&WorkerPool::worker, this).detach();
  }

  std::mutex mutex_;
  int num_started_ = 0;
  void (*function_)(void*, int) = nullptr;
  void* context_ = nullptr;
  alignas(64) std::atomic<uint64_t> unclaimed_{0};
  alignas(64) std::atomic<int> unfinished_{0};
  alignas(64) std::atomic<uint32_t> generation_{0};
};

// Never destroyed: its threads run until the process ends.
WorkerPool& pool() {
  static auto* instance = new WorkerPool;
  return *instance;
}

}  // namespace

int num_threads() { return omp_get_max_threads(); }

void run_slots(int num_slots, void (*function)(void*, int), void* context) {
  const int num_workers = num_threads() - 1;
  std::unique_lock lock(pool().mutex(), std::defer_lock);
  if (num_slots > 1 && num_workers > 0 && lock.try_lock()) {
    pool().run(num_slots, num_workers, function, context);
    return;
  }
  for (int slot = 0; slot < num_slots; ++slot) function(context, slot);
}

}  // namespace pelton
