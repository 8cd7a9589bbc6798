// SPDX-License-Identifier: Apache-2.0
// Allocates the values of one render against its budget, and owns those that may form cycles.
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
  /// The last of equal keys wins. Throws Fault for a key that cannot be hashed.
  Value dict(std::vector<std::pair<Value, Value>> items);
  Value range(int64_t start, int64_t stop, int64_t step);
  Value view(View::Of of, const Value& dict);
  /// `depth`: nesting of the deepest value that `next` captures.
  Value generator(Next next, int depth);
  Value undefined(std::string message);
  Value method(const Value& self, const Method* method);
  Value from_json(const Json& json);

  /// Keeps `object` until the end of the render: namespaces and the like may form cycles.
  template <typename T>
  T& keep(T object) {
    auto owned = std::make_shared<T>(std::move(object));
    T& result = *owned;
    budget_.allocate(sizeof(T) + 64);
    kept_.push_back(std::move(owned));
    return result;
  }

 private:
  Value sequence(Kind kind, std::vector<Value> items);
  int checked_depth(int inner) const;

  Budget budget_;
  std::deque<std::shared_ptr<void>> kept_;
};

/// The value of a key, or null. Throws Fault if `key` cannot be hashed.
const Value* find_in(Budget& budget, const Dict& dict, const Value& key);
/// The same for a string key.
const Value* find_in(const Dict& dict, std::string_view key);

}  // namespace stepforge::jinja
