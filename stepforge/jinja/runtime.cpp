// SPDX-License-Identifier: Apache-2.0
#include "stepforge/jinja/runtime.h"

#include <algorithm>

#include "stepforge/base/format.h"
#include "stepforge/jinja/operations.h"

namespace stepforge::jinja {

Value* Namespace::find(std::string_view name) {
  const auto found = std::find_if(attributes.begin(), attributes.end(),
                                  [name](const auto& entry) { return entry.first == name; });
  return found == attributes.end() ? nullptr : &found->second;
}

void Namespace::set(Heap& heap, std::string_view name, Value value) {
  if (name.starts_with('_')) {
    fail(format("the attribute {} of a namespace begins with an underscore", name), "rename it");
  }
  heap.budget().step(static_cast<int64_t>(attributes.size() / 4));
  if (Value* known = find(name)) {
    *known = std::move(value);
    return;
  }
  heap.budget().allocate(name.size() + sizeof(Value) + sizeof(std::string));
  attributes.emplace_back(name, std::move(value));
}

Loop::Loop(Heap& heap, const Value& iterable)
    : heap(heap), iterable(iterable), next(iterate(heap, iterable)) {}

bool Loop::advance() {
  Value item;
  if (!after.is(Kind::missing)) {
    item = std::move(after);
    after = Value();
  } else if (!next(item)) {
    return false;
  }
  ++index0;
  before = std::move(current);
  current = std::move(item);
  return true;
}

int64_t Loop::length() {
  if (known_length >= 0) return known_length;
  known_length = length_or_none(iterable);
  if (known_length >= 0) return known_length;
  std::vector<Value> rest;
  for (Value item; next(item);) {
    heap.budget().allocate(sizeof(Value));
    rest.push_back(std::move(item));
  }
  known_length = static_cast<int64_t>(rest.size()) + index0 + 1 + (after.is(Kind::missing) ? 0 : 1);
  next = iterate(heap, heap.list(std::move(rest)));
  return known_length;
}

bool Loop::is_last() {
  if (after.is(Kind::missing)) {
    Value item;
    if (next(item)) after = std::move(item);
  }
  return after.is(Kind::missing);
}

Value Loop::next_item() {
  return is_last() ? heap.undefined("there is no next item") : after;
}

}  // namespace stepforge::jinja
