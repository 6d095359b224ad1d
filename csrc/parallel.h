// Work shared among threads, joined on the work and not on the threads.
//
// An OpenMP region ends when every thread of its team has arrived. On a machine with as many busy processes as cores
// a thread often is not running at that moment, and each of the hundreds of regions of a step then waits for it for
// a scheduler's time slice, milliseconds. Here the caller takes over whatever no other thread has begun.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>

namespace pelton {

// Threads of a call: OpenMP's number, so that torch.set_num_threads holds for these kernels too.
int num_threads();

// Calls function(context, slot) once for each slot in [0, num_slots), on this thread and up to num_threads() - 1
// others, and returns when all have returned; num_slots is at most num_threads(). A slot should take its share from a
// common counter, so that one that starts late finds nothing left. Only one caller at a time has the others' help:
// a second one, on another thread, does its work alone. Calls must not be nested.
void run_slots(int num_slots, void (*function)(void* context, int slot), void* context);

template <typename Function>
static inline void run_slots(int num_slots, const Function& function) {
  run_slots(
      num_slots, [](void* context, int slot) { (*static_cast<const Function*>(context))(slot); },
      const_cast<Function*>(&function));
}

// Calls function(task) once for each task in [0, num_tasks), handed out one by one in ascending order.
template <typename Function>
static inline void run_tasks(int64_t num_tasks, const Function& function) {
  std::atomic<int64_t> next{0};
  const int64_t limit = num_threads();
  run_slots(static_cast<int>(num_tasks < limit ? num_tasks : limit), [&](int) {
    for (int64_t task = next.fetch_add(1); task < num_tasks; task = next.fetch_add(1)) function(task);
  });
}

// Most slots that run_ranges divides its tasks among.
constexpr int kMaxRanges = 64;

// As run_tasks, for tasks whose operands follow each other in memory: each slot begins with a range of neighbours of its
// own, which hardware prefetchers follow and no counter is shared for, and then takes over what is left of the others.
template <typename Function>
static inline void run_ranges(int64_t num_tasks, const Function& function) {
  struct alignas(64) Range {
    std::atomic<int64_t> next;
    int64_t end;
  };
  Range ranges[kMaxRanges];
  const int num_ranges = static_cast<int>(std::min<int64_t>({num_tasks, num_threads(), kMaxRanges}));
  for (int i = 0; i < num_ranges; ++i) {
    ranges[i].next.store(num_tasks * i / num_ranges, std::memory_order_relaxed);
    ranges[i].end = num_tasks * (i + 1) / num_ranges;
  }
  run_slots(num_ranges, [&](int slot) {
    for (int i = 0; i < num_ranges; ++i) {
      Range& range = ranges[(slot + i) % num_ranges];
      if (range.next.load(std::memory_order_relaxed) >= range.end) continue;
      for (int64_t task = range.next.fetch_add(1, std::memory_order_relaxed); task < range.end;
           task = range.next.fetch_add(1, std::memory_order_relaxed)) {
        function(task);
      }
    }
  });
}

}  // namespace pelton
