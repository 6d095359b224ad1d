// The Python module `pelton.kernels.cpu._cpu`. Functions take raw addresses and sizes: no torch at build time.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <algorithm>

#include "cpu_features.h"
#include "module.h"

namespace nb = nanobind;

namespace {

using pelton::InstructionSet;
using pelton::kInstructionSetNames;

// What the kernels use now.
nb::dict features() {
  const auto& has = pelton::cpu_features();
  nb::dict out;
  out["avx2"] = has.avx2;
  out["avx512"] = has.avx512;
  out["avx512_vnni"] = has.avx512_vnni;
  out["avx512_bf16"] = has.avx512_bf16;
  out["amx_bf16"] = has.amx_bf16;
  return out;
}

// The limits that differ on this machine, in ascending order.
nb::list instruction_sets() {
  nb::list out;
  for (std::size_t level = 0; level < kInstructionSetNames.size(); ++level) {
    const auto name = kInstructionSetNames[level];
    if (pelton::has_instruction_set(static_cast<InstructionSet>(level))) out.append(nb::str(name.data(), name.size()));
  }
  return out;
}

// For tests: "" is no limit. Returns the former limit.
std::string limit_instruction_set(const std::string& name) {
  const auto found = std::find(kInstructionSetNames.begin(), kInstructionSetNames.end(), name);
  if (found == kInstructionSetNames.end() && !name.empty()) throw nb::value_error("no such instruction set");
  const auto limit =
      name.empty() ? InstructionSet::kAmx : static_cast<InstructionSet>(found - kInstructionSetNames.begin());
  return std::string(kInstructionSetNames[static_cast<std::size_t>(pelton::limit_instruction_set(limit))]);
}

}  // namespace

NB_MODULE(_cpu, m) {
  m.doc() = "Pelton's CPU kernels";
  m.def("features", &features);
  m.def("instruction_sets", &instruction_sets);
  m.def("limit_instruction_set", &limit_instruction_set);
  pelton::register_attention(m);
  pelton::register_grouped(m);
  pelton::register_int8(m);
  pelton::register_linear(m);
  pelton::register_elementwise(m);
  pelton::register_program(m);
  pelton::register_rope(m);
  pelton::register_sampling(m);
}
