// SPDX-License-Identifier: Apache-2.0
// The values that have state: namespaces, macros and loops; and frames of variables.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "stepforge/jinja/heap.h"
#include "stepforge/jinja/tree.h"
#include "stepforge/jinja/value.h"

namespace stepforge::jinja {

/// The variables of one call of a macro, or of the template.
struct Frame {
  std::vector<Value> slots;
  std::shared_ptr<Frame> outer;
};

struct Namespace {
  std::vector<std::pair<std::string, Value>> attributes;

  Value* find(std::string_view name);
  void set(Heap& heap, std::string_view name, Value value);
};

struct Macro {
  const MacroBody* body;
  std::shared_ptr<Frame> closure;
};

/// The variable `loop`. It also drives its loop: it reads the values one by one.
struct Loop {
  Loop(Heap& heap, const Value& iterable);

  /// Goes to the next value; false at the end.
  bool advance();
  /// Reads a generator to its end.
  int64_t length();
  bool is_last();
  Value next_item();

  Heap& heap;
  Value iterable;
  Next next;
  int64_t index0 = -1;
  int64_t known_length = -1;
  Value current;
  Value before;
  Value after;  // read ahead, or missing
};

}  // namespace stepforge::jinja
