// Memory that a call of a kernel needs while it runs. It stays with the calling thread: asking the system for it
// anew would cost a page fault for every 4 KiB.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <new>

namespace pelton {

// Uninitialized, 64-byte aligned; valid until this thread's next call for the same type.
template <typename Element>
static inline Element* scratch(int64_t count) {
  constexpr std::size_t kAlignment = 64;
  struct Block {
    ~Block() { std::free(data); }
    void* data = nullptr;
    std::size_t bytes = 0;
  };
  static thread_local Block block;
  const std::size_t bytes = (count * sizeof(Element) + kAlignment - 1) / kAlignment * kAlignment;
  if (bytes > block.bytes) {
    std::free(block.data);
    block.data = std::aligned_alloc(kAlignment, bytes);
    if (block.data == nullptr) throw std::bad_alloc();
    block.bytes = bytes;
  }
  return static_cast<Element*>(block.data);
}

}  // namespace pelton
