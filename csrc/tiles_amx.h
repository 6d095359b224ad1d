// AMX tile configuration (Intel SDM volume 1, chapter 18), shared by the AMX kernels. Include from *_amx.cpp only.
#pragma once
#include <cstdint>

namespace pelton {
// Internal linkage: nothing compiled for AMX may be what the linker picks for other files.
namespace {

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

// Compiler fence: the tile instructions do not tell it which memory they read and write.
inline void publish() { asm volatile("" ::: "memory"); }

}  // namespace
}  // namespace pelton
