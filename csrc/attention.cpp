// Cuts paged attention into tiles and hands them to threads; the binding to Python.
#include "attention.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include <nanobind/nanobind.h>

#include "cpu_features.h"
#include "module.h"
#include "parallel.h"
#include "program.h"

namespace nb = nanobind;

namespace pelton {
namespace {

constexpr int kItemsPerThread = 4;
constexpr int64_t kParallelProducts = 100'000;  // below some microseconds of work a second thread does not pay
constexpr std::size_t kAlignment = 64;

struct Free {
  void operator()(float* memory) const { std::free(memory); }
};
using Floats = std::unique_ptr<float[], Free>;

std::size_t aligned_floats(std::size_t count) {
  constexpr std::size_t unit = kAlignment / sizeof(float);
  return (count + unit - 1) / unit * unit;
}

Floats allocate_floats(std::size_t count) {
  auto* memory = static_cast<float*>(std::aligned_alloc(kAlignment, std::max<std::size_t>(count, 16) * sizeof(float)));
  if (memory == nullptr) throw std::bad_alloc();
  return Floats(memory);
}

// What a thread takes at a time: a tile over all its segments, or one segment of a tile that is split among threads.
struct WorkItem {
  int tile;
  int first_segment, end_segment;
  int partial;  // where the partial result goes; -1 for a whole tile
};

struct Schedule {
  std::vector<AttentionTile> tiles;
  std::vector<WorkItem> items;
  int max_queries = 0;
  int num_partials = 0;
  int64_t num_products = 0;  // query elements times keys
};

int first_segment(const AttentionTile& tile) { return tile.first_key / kSegment; }
int end_segment(const AttentionTile& tile) { return (tile.end_key + kSegment - 1) / kSegment; }

// The last tile of a row sees the most keys and comes first: small tiles at the end even out the threads.
void add_row_tiles(const AttentionProblem& problem, int row, int tokens_per_tile, std::vector<AttentionTile>& tiles) {
  const int begin = problem.row_starts[row];
  const int num_tokens = problem.row_starts[row + 1] - begin;
  const int start = problem.context_lens[row] - num_tokens;
  for (int offset = (num_tokens - 1) / tokens_per_tile * tokens_per_tile; offset >= 0 && num_tokens > 0;
       offset -= tokens_per_tile) {
    const int tile_tokens = std::min(tokens_per_tile, num_tokens - offset);
    const int position = start + offset;
    const int first_key = std::max(0, position - (problem.window - 1));
    for (int kv_head = 0; kv_head < problem.num_kv_heads; ++kv_head) {
      tiles.push_back({row, begin + offset, tile_tokens, position, kv_head, first_key, position + tile_tokens});
    }
  }
}

// With few tiles their segments are shared out, so that one long row keeps every core busy. Results are the same.
Schedule make_schedule(const AttentionProblem& problem, int tile_queries, int num_threads) {
  Schedule schedule;
  const int tokens_per_tile = std::max(1, tile_queries / problem.group);
  for (int row = 0; row < problem.num_rows; ++row) add_row_tiles(problem, row, tokens_per_tile, schedule.tiles);
  const int num_tiles = static_cast<int>(schedule.tiles.size());
  const bool split = num_threads > 1 && num_tiles < kItemsPerThread * num_threads;
  schedule.items.reserve(num_tiles);
  for (int index = 0; index < num_tiles; ++index) {
    const AttentionTile& tile = schedule.tiles[index];
    const int queries = tile.num_tokens * problem.group;
    schedule.max_queries = std::max(schedule.max_queries, queries);
    schedule.num_products += int64_t{queries} * problem.head_dim * (tile.end_key - tile.first_key);
    const int first = first_segment(tile), end = end_segment(tile);
    if (split && end - first > 1) {
      for (int segment = first; segment < end; ++segment) {
        schedule.items.push_back({index, segment, segment + 1, schedule.num_partials++});
      }
    } else {
      schedule.items.push_back({index, first, end, -1});
    }
  }
  return schedule;
}

AttentionSegment locate_segment(const AttentionProblem& problem, const AttentionTile& tile, int index) {
  AttentionSegment segment;
  segment.begin = index * kSegment;
  segment.first_key = std::max(tile.first_key - segment.begin, 0);
  segment.end_key = std::min(tile.end_key - segment.begin, kSegment);
  const int32_t* pages = problem.page_table + tile.row * problem.page_table_stride;
  const int64_t bytes = problem.cache_type == ElementType::kBFloat16 ? 2 : 4;
  const int64_t key_width = 4 / bytes;
  segment.first_vector = segment.first_key / kKeyVector;
  segment.end_vector = (segment.end_key + kKeyVector - 1) / kKeyVector;
  for (int v = segment.first_vector; v < segment.end_vector; ++v) {
    const int position = segment.begin + v * kKeyVector;
    const int64_t page = pages[position / problem.page_size];
    const int64_t offset = position % problem.page_size;
    const int64_t head = int64_t{tile.kv_head} * problem.page_size * problem.head_dim;
    segment.keys[v] = static_cast<const std::byte*>(problem.key_cache) +
                      (page * problem.key_page_stride + head + offset * key_width) * bytes;
    segment.values[v] = static_cast<const std::byte*>(problem.value_cache) +
                        (page * problem.value_page_stride + head + offset * problem.head_dim) * bytes;
  }
  return segment;
}

std::size_t state_floats(const AttentionProblem& problem, int queries) {
  return 2 * aligned_floats(queries) + aligned_floats(std::size_t(queries) * problem.padded_head_dim);
}

SoftmaxState state_at(float* memory, int queries) {
  const std::size_t step = aligned_floats(queries);
  return {memory, memory + step, memory + 2 * step};
}

class Execution {
 public:
  Execution(const AttentionProblem& problem, const AttentionKernel& kernel, const Schedule& schedule, int num_threads)
      : problem_(problem),
        kernel_(kernel),
        schedule_(schedule),
        state_floats_(state_floats(problem, schedule.max_queries)),
        scratch_floats_(aligned_floats(kernel.scratch_floats(problem, schedule.max_queries))),
        private_(allocate_floats((scratch_floats_ + 2 * state_floats_) * num_threads)),
        partials_(allocate_floats(state_floats_ * schedule.num_partials)),
        unfinished_(schedule.num_partials > 0 ? schedule.tiles.size() : 0) {
    if (schedule.num_partials == 0) return;
    for (const WorkItem& item : schedule.items) unfinished_[item.tile].fetch_add(1, std::memory_order_relaxed);
  }

  // Work until nothing is left; called once by each thread.
  void work(int thread) {
    float* scratch = private_.get() + (scratch_floats_ + 2 * state_floats_) * thread;
    const std::size_t num_items = schedule_.items.size();
    for (std::size_t i = next_.fetch_add(1, std::memory_order_relaxed); i < num_items;
         i = next_.fetch_add(1, std::memory_order_relaxed)) {
      const WorkItem& item = schedule_.items[i];
      kernel_.load_queries(problem_, schedule_.tiles[item.tile], scratch);
      if (item.partial < 0) {
        run_tile(item, scratch);
      } else {
        run_part(item, scratch);
      }
    }
  }

 private:
  void run_tile(const WorkItem& item, float* scratch) {
    const AttentionTile& tile = schedule_.tiles[item.tile];
    const SoftmaxState total = state_at(scratch + scratch_floats_, schedule_.max_queries);
    const SoftmaxState part = state_at(scratch + scratch_floats_ + state_floats_, schedule_.max_queries);
    for (int index = item.first_segment; index < item.end_segment; ++index) {
      const bool first = index == item.first_segment;
      kernel_.attend(problem_, tile, locate_segment(problem_, tile, index), scratch, first ? total : part);
      if (!first) kernel_.merge(problem_, tile.num_tokens * problem_.group, total, part);
    }
    kernel_.store(problem_, tile, total);
  }

  // The thread that finishes a tile's last segment merges them all.
  void run_part(const WorkItem& item, float* scratch) {
    const AttentionTile& tile = schedule_.tiles[item.tile];
    kernel_.attend(problem_, tile, locate_segment(problem_, tile, item.first_segment), scratch, partial(item.partial));
    if (unfinished_[item.tile].fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    const int first = item.partial - (item.first_segment - first_segment(tile));
    const int num_segments = end_segment(tile) - first_segment(tile);
    for (int index = 1; index < num_segments; ++index) {
      kernel_.merge(problem_, tile.num_tokens * problem_.group, partial(first), partial(first + index));
    }
    kernel_.store(problem_, tile, partial(first));
  }

  SoftmaxState partial(int index) { return state_at(partials_.get() + state_floats_ * index, schedule_.max_queries); }

  const AttentionProblem& problem_;
  const AttentionKernel& kernel_;
  const Schedule& schedule_;
  std::size_t state_floats_, scratch_floats_;
  Floats private_;   // per thread: scratch, then two states
  Floats partials_;  // states of split tiles, consecutive for the segments of one tile
  std::vector<std::atomic<int>> unfinished_;  // per tile: segments still to do
  std::atomic<std::size_t> next_{0};
};

const AttentionKernel& choose_kernel(const AttentionProblem& problem) {
#if defined(__x86_64__)
  const CpuFeatures& has = cpu_features();
  const bool fits_amx = problem.query_type == ElementType::kBFloat16 && problem.cache_type == ElementType::kBFloat16 &&
                        problem.head_dim % kPaddedDims == 0;
  if (fits_amx && has.amx_bf16) return kAmxAttention;
  if (has.avx512) return kAvx512Attention;
#endif
  return kPortableAttention;
}

void paged_attention_binding(uintptr_t query, uintptr_t output, uintptr_t key_cache, uintptr_t value_cache,
                             uintptr_t row_starts, uintptr_t context_lens, uintptr_t page_table, int num_rows,
                             int num_heads, int num_kv_heads, int head_dim, int page_size, int64_t page_table_stride,
                             int64_t query_token_stride, int64_t query_head_stride, int64_t key_page_stride,
                             int64_t value_page_stride, int query_type, int cache_type, float scale, float softcap,
                             int window) {
  constexpr float kLog2E = 1.44269504088896341f;
  const AttentionProblem problem{
      .query = reinterpret_cast<const void*>(query),
      .output = reinterpret_cast<void*>(output),
      .key_cache = reinterpret_cast<const void*>(key_cache),
      .value_cache = reinterpret_cast<const void*>(value_cache),
      .row_starts = reinterpret_cast<const int32_t*>(row_starts),
      .context_lens = reinterpret_cast<const int32_t*>(context_lens),
      .page_table = reinterpret_cast<const int32_t*>(page_table),
      .num_rows = num_rows,
      .num_heads = num_heads,
      .num_kv_heads = num_kv_heads,
      .head_dim = head_dim,
      .page_size = page_size,
      .page_table_stride = page_table_stride,
      .query_token_stride = query_token_stride,
      .query_head_stride = query_head_stride,
      .key_page_stride = key_page_stride,
      .value_page_stride = value_page_stride,
      .query_type = static_cast<ElementType>(query_type),
      .cache_type = static_cast<ElementType>(cache_type),
      .window = window,
      .query_scale = softcap > 0 ? scale / softcap : scale * kLog2E,
      .capped_scale = softcap * kLog2E,
      .group = num_heads / num_kv_heads,
      .padded_head_dim = (head_dim + kPaddedDims - 1) / kPaddedDims * kPaddedDims,
  };
  submit([problem, kernel = &choose_kernel(problem)] {
    paged_attention(problem, *kernel);
    return true;
  });
}

}  // namespace

void paged_attention(const AttentionProblem& problem, const AttentionKernel& kernel) {
  const int max_threads = num_threads();
  const Schedule schedule = make_schedule(problem, kernel.tile_queries, max_threads);
  if (schedule.items.empty()) return;
  const int num_slots = schedule.num_products > kParallelProducts ? max_threads : 1;
  Execution execution(problem, kernel, schedule, num_slots);
  run_slots(num_slots, [&](int slot) { execution.work(slot); });
}

void register_attention(nb::module_& m) {
  m.def("paged_attention", &paged_attention_binding, nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace pelton
