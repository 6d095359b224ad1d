// Grouped products: the choice of kernel and the binding.
#include "grouped.h"

#include "cpu_features.h"
#include "grouped_pack.h"
#include "grouped_quantize.h"
#include "module.h"
#include "program.h"

namespace pelton {
namespace {

void grouped_linear(const GroupedCall& call) {
  GroupedQuantizeFunction quantize = grouped_quantize_scalar;
  GroupedTileFunction tile = grouped_tile_scalar;
#if defined(__x86_64__)
  if (cpu_features().avx512_vnni) {
    quantize = grouped_quantize_vnni;
    tile = grouped_tile_vnni;
  } else if (cpu_features().avx2) {
    quantize = grouped_quantize_avx2;
    tile = grouped_tile_avx2;
  }
#endif
  const int64_t num_groups = call.num_inputs / kGroupInputs;
  const PanelProduct product{call.num_rows,
                             call.num_inputs,
                             num_groups,
                             call.weight,
                             count_panels(call.num_outputs, call.gated),
                             panel_columns(call.gated),
                             num_groups * grouped_bytes(call.kind),
                             grouped_bytes(call.kind)};
  multiply_panels<GroupedRows>(
      product, [&](int64_t row, int64_t num_rows, GroupedRows* panel) { quantize(call, row, num_rows, panel); },
      [&](const GroupedTile& args) { tile(call, args); });
}

// What Python calls: addresses as integers, sizes and strides in elements, types as ElementType and GroupedKind.

void linear_binding(uintptr_t x, int64_t x_stride, int x_type, uintptr_t weight, int kind, bool rotated, bool gated,
                    uintptr_t bias, int bias_type, uintptr_t out, int64_t out_stride, int out_type, bool accumulate,
                    int64_t num_rows, int64_t num_outputs, int64_t num_inputs) {
  const GroupedCall call{reinterpret_cast<const void*>(x), x_stride, static_cast<ElementType>(x_type),
                         reinterpret_cast<const uint8_t*>(weight), static_cast<GroupedKind>(kind), rotated, gated,
                         reinterpret_cast<const void*>(bias), static_cast<ElementType>(bias_type),
                         reinterpret_cast<void*>(out), out_stride, static_cast<ElementType>(out_type), accumulate,
                         num_rows, num_outputs, num_inputs};
  submit([call] {
    grouped_linear(call);
    return true;
  });
}

int64_t packed_bytes_binding(int kind, int64_t num_outputs, int64_t num_inputs, bool gated) {
  return grouped_packed_bytes(static_cast<GroupedKind>(kind), num_outputs, num_inputs, gated);
}

void pack_binding(uintptr_t blocks, int kind, int64_t num_rows, int64_t num_inputs, int64_t first_row,
                  int64_t num_outputs, bool gated, uintptr_t packed) {
  grouped_pack(reinterpret_cast<const uint8_t*>(blocks), static_cast<GroupedKind>(kind), num_rows, num_inputs,
               first_row, num_outputs, gated, reinterpret_cast<uint8_t*>(packed));
}

bool quantize_binding(uintptr_t rows, int64_t row_bytes, int type, int64_t num_rows, int64_t num_inputs, bool rotated,
                      int64_t first_row, int64_t num_outputs, bool gated, uintptr_t packed) {
  const StoredRows stored{reinterpret_cast<const uint8_t*>(rows), row_bytes, static_cast<StoredType>(type), num_rows,
                          num_inputs};
  return grouped_quantize(stored, rotated, first_row, num_outputs, gated, reinterpret_cast<uint8_t*>(packed));
}

bool unpack_rows_binding(uintptr_t packed, int kind, bool rotated, uintptr_t ids, int64_t num_rows,
                         int64_t num_outputs, int64_t num_inputs, bool gated, uintptr_t out, int out_type) {
  return submit([=] {
    return grouped_unpack_rows(reinterpret_cast<const uint8_t*>(packed), static_cast<GroupedKind>(kind), rotated,
                               reinterpret_cast<const int64_t*>(ids), num_rows, num_outputs, num_inputs, gated,
                               reinterpret_cast<void*>(out), static_cast<ElementType>(out_type));
  });
}

}  // namespace

void register_grouped(nanobind::module_& m) {
  using namespace nanobind::literals;
  using Unlocked = nanobind::call_guard<nanobind::gil_scoped_release>;
  m.def("grouped_linear", linear_binding, "x"_a, "x_stride"_a, "x_type"_a, "weight"_a, "kind"_a, "rotated"_a,
        "gated"_a, "bias"_a, "bias_type"_a, "out"_a, "out_stride"_a, "out_type"_a, "accumulate"_a, "num_rows"_a,
        "num_outputs"_a, "num_inputs"_a, Unlocked());
  m.def("grouped_packed_bytes", packed_bytes_binding, "kind"_a, "num_outputs"_a, "num_inputs"_a,
        "gated"_a);
  m.def("grouped_pack", pack_binding, "blocks"_a, "kind"_a, "num_rows"_a, "num_inputs"_a, "first_row"_a,
        "num_outputs"_a, "gated"_a, "packed"_a, Unlocked());
  m.def("grouped_quantize", quantize_binding, "rows"_a, "row_bytes"_a, "type"_a, "num_rows"_a, "num_inputs"_a,
        "rotated"_a, "first_row"_a, "num_outputs"_a, "gated"_a, "packed"_a, Unlocked());
  m.def("grouped_unpack_rows", unpack_rows_binding, "packed"_a, "kind"_a, "rotated"_a, "ids"_a, "num_rows"_a,
        "num_outputs"_a, "num_inputs"_a, "gated"_a, "out"_a, "out_type"_a, Unlocked());
}

}  // namespace pelton
