// Each kernel family registers its functions with the module through one of these.
#pragma once
#include <nanobind/nanobind.h>

namespace pelton {
void register_attention(nanobind::module_& m);
void register_grouped(nanobind::module_& m);
void register_int8(nanobind::module_& m);
void register_linear(nanobind::module_& m);
void register_elementwise(nanobind::module_& m);
void register_program(nanobind::module_& m);
void register_rope(nanobind::module_& m);
void register_sampling(nanobind::module_& m);
}  // namespace pelton
