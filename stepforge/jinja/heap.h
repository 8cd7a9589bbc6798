// SPDX-License-Identifier: Apache-2.0
// Makes the values of one render, counts them against its budget, and owns those that may refer to each other.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "stepforge/base/json.h"
#include "stepforge/jinja/budget.h"
#include "stepforge/jinja/value.h"

namespace stepforge::jinja {

class Heap {
 public:
  explicit Heap(const RenderOptions& options) : budget_(options) {}
  Budget& budget() { return budget_; }

  Value text(std::string bytes, bool safe = false);
  Value list(std::vector<Value> items);
  Value tuple(std::vector<Value> items);
  /// A tuple (grouper, list) with attributes, of groupby.
  Value group(Value grouper, Value items);
  /// Later values of equal keys replace earlier ones. Throws Fault if a key cannot be one.
  Value dict(std::vector<std::pair<Value, Value>> items);
  Value range(int64_t start, int64_t stop, int64_t step);
  Value view(View::Of of, const Value& dict);
  /// `depth` is that of the deepest value that `next` refers to.
  Value generator(Next next, int depth);
  Value undefined(std::string message);
  Value method(const Value& self, const Method* method);
  Value from_json(const Json& json);

  /// Keeps `object` until the end of the render: namespaces and the like may form rings.
  template <typename T>
  T& keep(T object) {
    auto owned = std::make_shared<T>(std::move(object));
    T& result = *owned;
    budget_.allocate(sizeof(T) + 64);
    kept_.push_back(std::move(owned));
    return result;
  }
  void keep_alive(std::shared_ptr<void> object) { kept_.push_back(std::move(object)); }

 private:
  Value sequence(Kind kind, std::vector<Value> items, bool group);
  int checked_depth(int inner) const;

  Budget budget_;
  std::deque<std::shared_ptr<void>> kept_;
};

/// The value of a key, or null. Throws Fault if `key` cannot be a key.
const Value* find_in(Budget& budget, const Dict& dict, const Value& key);
/// Of a key that is a string.
const Value* find_in(const Dict& dict, std::string_view key);

}  // namespace stepforge::jinja
