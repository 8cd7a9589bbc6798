// SPDX-License-Identifier: Apache-2.0
// RAII for the state of the interpreter that a block changes.
#pragma once

#include <string>
#include <utility>

#include "stepforge/jinja/interpreter.h"

namespace stepforge::jinja {

class Interpreter::Buffer {
 public:
  explicit Buffer(Interpreter& interpreter)
      : interpreter_(interpreter), before_(std::exchange(interpreter.out_, &text)) {}
  ~Buffer() { interpreter_.out_ = before_; }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  std::string text;

 private:
  Interpreter& interpreter_;
  std::string* before_;
};

class Interpreter::Entered {
 public:
  Entered(Interpreter& interpreter, const Function& function, FramePtr outer) : interpreter_(interpreter) {
    const auto slots = static_cast<size_t>(function.slots);
    interpreter.heap_.budget().allocate(slots * sizeof(Value) + sizeof(Frame));
    auto frame = std::make_shared<Frame>(Frame{std::vector<Value>(slots), std::move(outer)});
    before_ = std::exchange(interpreter.frame_, std::move(frame));
  }
  ~Entered() { interpreter_.frame_ = std::move(before_); }
  Entered(const Entered&) = delete;
  Entered& operator=(const Entered&) = delete;

 private:
  Interpreter& interpreter_;
  FramePtr before_;
};

}  // namespace stepforge::jinja
