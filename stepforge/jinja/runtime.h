// SPDX-License-Identifier: Apache-2.0
// The values that have state: namespaces, macros, loops, cyclers, joiners; and frames of variables.
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

/// The variables of one call of a function.
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

/// The variable `loop`, which reads the values of its loop one by one.
struct Loop {
  Loop(Heap& heap, const Value& iterable, const ForLoop* recursive, std::shared_ptr<Frame> closure,
       int64_t depth0);

  /// Goes to the next value; false at the end.
  bool advance();
  /// Reads what is left of a generator.
  int64_t length();
  bool is_last();
  Value next_item();

  Heap& heap;
  Value iterable;
  Next next;
  const ForLoop* recursive;  // null: the loop may not call itself
  std::shared_ptr<Frame> closure;
  int64_t depth0;
  int64_t index0 = -1;
  int64_t known_length = -1;
  Value current;
  Value before;
  Value after;    // read ahead, or missing
  Value changed;  // the last arguments of loop.changed()
};

struct Cycler {
  std::vector<Value> items;
  size_t position = 0;
};

struct Joiner {
  Value separator;
  bool used = false;
};

}  // namespace stepforge::jinja
