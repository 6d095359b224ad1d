// Which instruction sets this machine has, asked once at run time.
#pragma once

namespace pelton {

struct CpuFeatures {
  bool avx512;       // F, BW, DQ, VL and FMA
  bool avx512_vnni;  // avx512 plus products of 8-bit integers
  bool avx512_bf16;  // avx512 plus BF16 products
  bool amx_bf16;     // AMX tiles with BF16 products, granted by the kernel to this process
};

const CpuFeatures& cpu_features();

}  // namespace pelton
