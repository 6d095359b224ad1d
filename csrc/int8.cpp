// Int8 products: the choice of kernel and the binding.
#include "int8.h"

#include "cpu_features.h"
#include "int8_pack.h"
#include "module.h"
#include "program.h"

namespace pelton {
namespace {

void int8_linear(const Int8Call& call) {
  Int8QuantizeFunction quantize = int8_quantize_scalar;
  Int8TileFunction tile = int8_tile_scalar;
#if defined(__x86_64__)
  if (cpu_features().avx512_vnni) {
    quantize = int8_quantize_vnni;
    tile = int8_tile_vnni;
  } else if (cpu_features().avx2) {
    quantize = int8_quantize_avx2;
    tile = int8_tile_avx2;
  }
#endif
  const PanelProduct product{call.num_rows,
                             call.num_inputs,
                             int8_num_groups(call.num_inputs),
                             call.weight,
                             count_panels(call.num_outputs, call.gated),
                             panel_columns(call.gated),
                             int8_panel_bytes(call.num_inputs),
                             kInt8GroupInputs * kPanelOutputs};
  multiply_panels<Int8Group>(
      product,
      [&](int64_t row, int64_t num_rows, Int8Group* panel) { quantize(call, row, num_rows, panel); },
      [&](const Int8Tile& args) { tile(call, args); });
}

// What Python calls: addresses as integers, sizes and strides in elements, types as ElementType and StoredType.

void linear_binding(uintptr_t x, int64_t x_stride, int x_type, uintptr_t weight, bool gated, uintptr_t bias,
                    int bias_type, uintptr_t out, int64_t out_stride, int out_type, bool accumulate, int64_t num_rows,
                    int64_t num_outputs, int64_t num_inputs) {
  const Int8Call call{reinterpret_cast<const void*>(x), x_stride, static_cast<ElementType>(x_type),
                      reinterpret_cast<const uint8_t*>(weight), gated, reinterpret_cast<const void*>(bias),
                      static_cast<ElementType>(bias_type), reinterpret_cast<void*>(out), out_stride,
                      static_cast<ElementType>(out_type), accumulate, num_rows, num_outputs, num_inputs};
  submit([call] {
    int8_linear(call);
    return true;
  });
}

bool pack_binding(uintptr_t rows, int64_t row_bytes, int type, int64_t num_rows, int64_t num_inputs, int64_t first_row,
                  int64_t num_outputs, bool gated, uintptr_t packed) {
  const StoredRows stored{reinterpret_cast<const uint8_t*>(rows), row_bytes, static_cast<StoredType>(type), num_rows,
                          num_inputs};
  return int8_pack(stored, first_row, num_outputs, gated, reinterpret_cast<uint8_t*>(packed));
}

bool unpack_rows_binding(uintptr_t packed, uintptr_t ids, int64_t num_rows, int64_t num_outputs, int64_t num_inputs,
                         bool gated, uintptr_t out, int out_type) {
  return submit([=] {
    return int8_unpack_rows(reinterpret_cast<const uint8_t*>(packed), reinterpret_cast<const int64_t*>(ids), num_rows,
                            num_outputs, num_inputs, gated, reinterpret_cast<void*>(out),
                            static_cast<ElementType>(out_type));
  });
}

}  // namespace

void register_int8(nanobind::module_& m) {
  using namespace nanobind::literals;
  using Unlocked = nanobind::call_guard<nanobind::gil_scoped_release>;
  m.def("int8_linear", linear_binding, "x"_a, "x_stride"_a, "x_type"_a, "weight"_a, "gated"_a, "bias"_a, "bias_type"_a,
        "out"_a, "out_stride"_a, "out_type"_a, "accumulate"_a, "num_rows"_a, "num_outputs"_a, "num_inputs"_a,
        Unlocked());
  m.def("int8_packed_bytes", int8_packed_bytes, "num_outputs"_a, "num_inputs"_a, "gated"_a);
  m.def("int8_pack", pack_binding, "rows"_a, "row_bytes"_a, "type"_a, "num_rows"_a, "num_inputs"_a, "first_row"_a,
        "num_outputs"_a, "gated"_a, "packed"_a, Unlocked());
  m.def("int8_unpack_rows", unpack_rows_binding, "packed"_a, "ids"_a, "num_rows"_a, "num_outputs"_a, "num_inputs"_a,
        "gated"_a, "out"_a, "out_type"_a, Unlocked());
}

}  // namespace pelton
