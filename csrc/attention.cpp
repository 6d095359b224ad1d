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

std::size_t aligned_floats(std::size_t count) {
  constexpr std::size_t unit = kAlignment / sizeof(float);
  return (count + unit - 1) / unit * unit;
}

// Memory for floats at 64-byte boundaries, which a call leaves to the next one: a step makes the same call a layer.
class FloatArena {
 public:
  // At least `count` floats, valid until the next call; the content is undefined.
  float* reserve(std::size_t count) {
    if (count > size_) {
      memory_.reset(static_cast<float*>(std::aligned_alloc(kAlignment, aligned_floats(count) * sizeof(float))));
      size_ = memory_ == nullptr ? 0 : count;
      if (memory_ == nullptr) throw std::bad_alloc();
    }
    return memory_.get();
  }

 private:
  struct Free {
    void operator()(float* memory) const { std::free(memory); }
  };
  std::unique_ptr<float[], Free> memory_;
  std::size_t size_ = 0;
};

// What a thread takes at a time: a tile over all its segments, or one segment of a tile that is split among threads.
struct WorkItem {
  int tile;
  int first_segment, end_segment;
  int partial;  // where the partial result goes; -1 for a whole tile
};

// Kept from call to call for the memory of its vectors.
struct Schedule {
  std::vector<AttentionTile> tiles;
  std::vector<WorkItem> items;
  int max_queries = 0;
  int num_partials = 0;
  int64_t num_products = 0;  // query elements times keys

  void clear() {
    tiles.clear();
    items.clear();
    max_queries = num_partials = 0;
    num_products = 0;
  }
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
void make_schedule(const AttentionProblem& problem, int tile_queries, int num_threads, Schedule& schedule) {
  schedule.clear();
  const int tokens_per_tile = std::max(1, tile_queries / problem.group);
  for (int row = 0; row < problem.num_rows; ++row) add_row_tiles(problem, row, tokens_per_tile, schedule.tiles);
  const int num_tiles = static_cast<int>(schedule.tiles.size());
  const bool split = num_threads > 1 && num_tiles < kItemsPerThread * num_threads;
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
}

void locate_segment(const AttentionProblem& problem, const AttentionTile& tile, int index, AttentionSegment& segment) {
  segment.begin = index * kSegment;
  segment.first_key = std::max(tile.first_key - segment.begin, 0);
  segment.end_key = std::min(tile.end_key - segment.begin, kSegment);
  segment.first_vector = segment.first_key / kKeyVector;
  segment.end_vector = (segment.end_key + kKeyVector - 1) / kKeyVector;
  const int64_t bytes = bytes_of(problem.cache_type);
  const int64_t head_keys = int64_t{tile.kv_head} * problem.page_size;
  const int64_t head = head_keys * problem.head_dim * bytes;
  const int64_t value_vector_bytes = int64_t{kKeyVector} * problem.head_dim * bytes;
  const int vectors_per_page = problem.page_size / kKeyVector;
  const int first = segment.begin / kKeyVector + segment.first_vector;
  const int32_t* page = problem.page_table + tile.row * problem.page_table_stride + first / vectors_per_page;
  int in_page = first % vectors_per_page;
  for (int v = segment.first_vector; v < segment.end_vector; ++v) {
    segment.keys[v] = static_cast<const std::byte*>(problem.key_cache) + *page * problem.key_page_stride * bytes +
                      head + int64_t{in_page} * kKeyVector * 4;
    segment.values[v] = static_cast<const std::byte*>(problem.value_cache) + *page * problem.value_page_stride * bytes +
                        head + in_page * value_vector_bytes;
    if (is_scaled(problem.cache_type)) {
      const int64_t scale = *page * problem.scale_page_stride + head_keys + int64_t{in_page} * kKeyVector;
      segment.key_scales[v] = problem.key_scales + scale;
      segment.value_scales[v] = problem.value_scales + scale;
    }
    if (++in_page < vectors_per_page) continue;
    in_page = 0;
    ++page;
  }
}

std::size_t state_floats(const AttentionProblem& problem, int queries) {
  return 2 * aligned_floats(queries) + aligned_floats(std::size_t(queries) * problem.head_dim);
}

SoftmaxState state_at(float* memory, int queries) {
  const std::size_t step = aligned_floats(queries);
  return {memory, memory + step, memory + 2 * step};
}

// What a call leaves behind for the next one of the same thread: memory only.
struct Workspace {
  Schedule schedule;
  FloatArena floats;
  std::vector<std::atomic<int>> unfinished;
};

class Execution {
 public:
  Execution(const AttentionProblem& problem, const AttentionKernel& kernel, Workspace& workspace, int num_threads)
      : problem_(problem),
        kernel_(kernel),
        schedule_(workspace.schedule),
        state_floats_(state_floats(problem, schedule_.max_queries)),
        scratch_floats_(aligned_floats(kernel.scratch_floats(problem, schedule_.max_queries))),
        private_(workspace.floats.reserve((scratch_floats_ + 2 * state_floats_) * num_threads +
                                          state_floats_ * schedule_.num_partials)),
        partials_(private_ + (scratch_floats_ + 2 * state_floats_) * num_threads),
        unfinished_(workspace.unfinished) {
    if (schedule_.num_partials == 0) return;
    if (unfinished_.size() < schedule_.tiles.size()) {
      unfinished_ = std::vector<std::atomic<int>>(schedule_.tiles.size());
    }
    for (auto& count : unfinished_) count.store(0, std::memory_order_relaxed);
    for (const WorkItem& item : schedule_.items) unfinished_[item.tile].fetch_add(1, std::memory_order_relaxed);
  }

  // Work until nothing is left; called once by each thread. A thread knows the segment after the one that it works on,
  // so that the kernel can ask for it early.
  void work(int thread) {
    float* scratch = private_ + (scratch_floats_ + 2 * state_floats_) * thread;
    AttentionSegment segments[2];
    Visit visit = claim();
    if (visit.item == nullptr) return;
    locate(visit, segments[0]);
    for (int current = 0; visit.item != nullptr; current ^= 1) {
      const Visit next = after(visit);
      if (next.item != nullptr) locate(next, segments[current ^ 1]);
      attend(visit, segments[current], segments[next.item == nullptr ? current : current ^ 1], scratch);
      visit = next;
    }
  }

 private:
  struct Visit {
    const WorkItem* item;  // null: nothing is left
    int segment;
  };

  Visit claim() {
    const std::size_t index = next_.fetch_add(1, std::memory_order_relaxed);
    if (index >= schedule_.items.size()) return {nullptr, 0};
    const WorkItem* item = &schedule_.items[index];
    return {item, item->first_segment};
  }

  Visit after(const Visit& visit) {
    return visit.segment + 1 < visit.item->end_segment ? Visit{visit.item, visit.segment + 1} : claim();
  }

  void locate(const Visit& visit, AttentionSegment& segment) const {
    locate_segment(problem_, schedule_.tiles[visit.item->tile], visit.segment, segment);
  }

  void attend(const Visit& visit, const AttentionSegment& segment, const AttentionSegment& next, float* scratch) {
    const WorkItem& item = *visit.item;
    const AttentionTile& tile = schedule_.tiles[item.tile];
    const bool first = visit.segment == item.first_segment;
    if (first) kernel_.load_queries(problem_, tile, scratch);
    if (item.partial >= 0) {
      kernel_.attend(problem_, tile, segment, next, scratch, partial(item.partial));
      finish_part(item, tile);
      return;
    }
    const SoftmaxState total = state_at(scratch + scratch_floats_, schedule_.max_queries);
    const SoftmaxState part = state_at(scratch + scratch_floats_ + state_floats_, schedule_.max_queries);
    kernel_.attend(problem_, tile, segment, next, scratch, first ? total : part);
    if (!first) kernel_.merge(problem_, tile.num_tokens * problem_.group, total, part);
    if (visit.segment + 1 == item.end_segment) kernel_.store(problem_, tile, total);
  }

  // The thread that finishes a tile's last segment merges them all.
  void finish_part(const WorkItem& item, const AttentionTile& tile) {
    if (unfinished_[item.tile].fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    const int first = item.partial - (item.first_segment - first_segment(tile));
    const int num_segments = end_segment(tile) - first_segment(tile);
    for (int index = 1; index < num_segments; ++index) {
      kernel_.merge(problem_, tile.num_tokens * problem_.group, partial(first), partial(first + index));
    }
    kernel_.store(problem_, tile, partial(first));
  }

  SoftmaxState partial(int index) { return state_at(partials_ + state_floats_ * index, schedule_.max_queries); }

  const AttentionProblem& problem_;
  const AttentionKernel& kernel_;
  const Schedule& schedule_;
  std::size_t state_floats_, scratch_floats_;
  float* private_;   // per thread: scratch, then two states
  float* partials_;  // states of split tiles, consecutive for the segments of one tile
  std::vector<std::atomic<int>>& unfinished_;  // per tile: segments still to do
  std::atomic<std::size_t> next_{0};
};

const AttentionKernel& choose_kernel(const AttentionProblem& problem) {
#if defined(__x86_64__)
  const CpuFeatures& has = cpu_features();
  const bool is_bf16 = problem.cache_type == ElementType::kBFloat16;
  const bool is_fp8 = problem.cache_type == ElementType::kFloat8;
  if (problem.query_type == ElementType::kBFloat16) {
    if (is_bf16 && problem.head_dim % 32 == 0 && has.amx_bf16) return kAmxAttention;
    if ((is_bf16 || is_fp8) && has.avx512_bf16) return kAvx512Bf16Attention;
  }
  if (problem.cache_type == ElementType::kInt8 && has.avx512_vnni) return kVnniAttention;
  if (has.avx512) return kAvx512Attention;
  if ((is_bf16 || problem.cache_type == ElementType::kFloat32) && has.avx2) return kAvx2Attention;
#endif
  return kPortableAttention;
}

void paged_attention_binding(uintptr_t query, uintptr_t output, uintptr_t key_cache, uintptr_t value_cache,
                             uintptr_t key_scales, uintptr_t value_scales, uintptr_t row_starts,
                             uintptr_t context_lens, uintptr_t page_table, int num_rows,
                             int num_heads, int num_kv_heads, int head_dim, int page_size, int64_t page_table_stride,
                             int64_t query_token_stride, int64_t query_head_stride, int64_t key_page_stride,
                             int64_t value_page_stride, int64_t scale_page_stride, int query_type, int cache_type,
                             float scale, float softcap,
                             int window) {
  constexpr float kLog2E = 1.44269504088896341f;
  const AttentionProblem problem{
      .query = reinterpret_cast<const void*>(query),
      .output = reinterpret_cast<void*>(output),
      .key_cache = reinterpret_cast<const void*>(key_cache),
      .value_cache = reinterpret_cast<const void*>(value_cache),
      .key_scales = reinterpret_cast<const float*>(key_scales),
      .value_scales = reinterpret_cast<const float*>(value_scales),
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
      .scale_page_stride = scale_page_stride,
      .query_type = static_cast<ElementType>(query_type),
      .cache_type = static_cast<ElementType>(cache_type),
      .window = window,
      .query_scale = softcap > 0 ? scale / softcap : scale * kLog2E,
      .capped_scale = softcap * kLog2E,
      .group = num_heads / num_kv_heads,
  };
  submit([problem, kernel = &choose_kernel(problem)] {
    paged_attention(problem, *kernel);
    return true;
  });
}

}  // namespace

void paged_attention(const AttentionProblem& problem, const AttentionKernel& kernel) {
  static thread_local Workspace workspace;
  const int max_threads = num_threads();
  make_schedule(problem, kernel.tile_queries, max_threads, workspace.schedule);
  if (workspace.schedule.items.empty()) return;
  const int num_slots = workspace.schedule.num_products > kParallelProducts ? max_threads : 1;
  Execution execution(problem, kernel, workspace, num_slots);
  run_slots(num_slots, [&](int slot) { execution.work(slot); });
}

void register_attention(nb::module_& m) {
  m.def("paged_attention", &paged_attention_binding, nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace pelton
