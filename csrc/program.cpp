// The binding of program.h.
#include "program.h"

#include "module.h"

namespace pelton {

Program*& recorded_program() {
  thread_local Program* program = nullptr;
  return program;
}

void register_program(nanobind::module_& m) {
  nanobind::class_<Program>(m, "Program")
      .def(nanobind::init<>())
      .def("__len__", &Program::size)
      .def("run", &Program::run, nanobind::call_guard<nanobind::gil_scoped_release>())
      // Between the two, this thread's calls run and are kept.
      .def("begin", [](Program& program) { recorded_program() = &program; })
      .def("end", [](Program&) { recorded_program() = nullptr; });
}

}  // namespace pelton
