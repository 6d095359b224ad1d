// The Python module `pelton.kernels.cpu._cpu`. Functions take raw addresses and sizes: no torch at build time.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "cpu_features.h"
#include "module.h"

namespace nb = nanobind;

NB_MODULE(_cpu, m) {
  m.doc() = "Pelton's CPU kernels";
  m.def("features", [] {
    const auto& has = pelton::cpu_features();
    nb::dict out;
    out["avx512"] = has.avx512;
    out["avx512_vnni"] = has.avx512_vnni;
    out["avx512_bf16"] = has.avx512_bf16;
    out["amx_bf16"] = has.amx_bf16;
    return out;
  });
  pelton::register_attention(m);
  pelton::register_grouped(m);
  pelton::register_int8(m);
  pelton::register_linear(m);
  pelton::register_elementwise(m);
  pelton::register_rope(m);
  pelton::register_sampling(m);
}
