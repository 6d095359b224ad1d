// Recorded steps: the kernel calls of one forward pass, run again without a return to Python in between.
//
// A decode step of a small model is hundreds of calls of some microseconds, and Python takes as long to make each. While
// a thread records, submit() runs a call and keeps it; Program::run() runs all kept calls in order. A call keeps
// addresses, strides and sizes. What lies at the addresses may change between runs, the addresses may not, and whoever
// records keeps the memory alive.
#pragma once
#include <functional>
#include <utility>
#include <vector>

namespace pelton {

class Program {
 public:
  using Call = std::function<bool()>;  // false: its input is invalid, and it has written nothing

  void add(Call call) { calls_.push_back(std::move(call)); }

  // False, without the calls that follow, as soon as a call is.
  bool run() const {
    for (const Call& call : calls_) {
      if (!call()) return false;
    }
    return true;
  }

  std::size_t size() const { return calls_.size(); }

 private:
  std::vector<Call> calls_;
};

// The program that this thread records into; null while it does not record.
Program*& recorded_program();

// Runs `call` now, and keeps it where this thread records. Its result is the call's.
template <typename Function>
static inline bool submit(Function call) {
  if (Program* program = recorded_program()) program->add(call);
  return call();
}

}  // namespace pelton
