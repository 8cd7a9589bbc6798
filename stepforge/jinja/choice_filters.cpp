// SPDX-License-Identifier: Apache-2.0
// map, select, reject and unique. All are lazy.
#include <algorithm>

#include "stepforge/base/format.h"
#include "stepforge/jinja/filters.h"
#include "stepforge/jinja/formatting.h"
#include "stepforge/jinja/operations.h"

namespace stepforge::jinja {
namespace {
namespace choice_filter {

using Step = std::function<Value(const Value&)>;

const std::string& name_argument(const Value& value, std::string_view what) {
  if (!value.is(Kind::string))
    fail(format("the name of a {} must be a string, not {}", what, type_name(value)));
  return value.text();
}

Arguments without_first(const Arguments& arguments, size_t count) {
  Arguments result = arguments;
  result.positional.erase(result.positional.begin(),
                          result.positional.begin() + static_cast<std::ptrdiff_t>(count));
  return result;
}

/// Nesting of the deepest value that a generator captures.
int depth_of(const Value& subject, const Arguments& arguments) {
  int depth = jinja::depth_of(subject);
  for (const Value& value : arguments.positional) depth = std::max(depth, jinja::depth_of(value));
  for (const auto& [name, value] : arguments.named) depth = std::max(depth, jinja::depth_of(value));
  return depth;
}

Step mapped_attribute(Heap& heap, const Arguments& arguments) {
  const auto values = bind("map", arguments, {"attribute", "default"}, 0);
  const Value fallback = values[1] == nullptr ? Value::none() : *values[1];
  return [&heap, path = AttributePath(heap, values[0]), fallback](const Value& item) {
    return path.look_up(heap, item, &fallback);
  };
}

bool has_attribute(const Arguments& arguments) {
  return std::any_of(arguments.named.begin(), arguments.named.end(),
                     [](const auto& entry) { return entry.first == "attribute"; });
}

Step mapping(Interpreter& interpreter, const Arguments& arguments) {
  if (arguments.positional.empty() && has_attribute(arguments))
    return mapped_attribute(interpreter.heap(), arguments);
  if (arguments.positional.empty()) fail("map needs the name of a filter, or attribute=", "pass one");
  const std::string& name = name_argument(arguments.positional[0], "filter");
  const ValueFunction filter = require_filter(name);
  return [&interpreter, filter, rest = without_first(arguments, 1)](const Value& item) {
    Arguments copy = rest;
    return filter(interpreter, item, copy);
  };
}

Value map(Interpreter& interpreter, const Value& subject, Arguments& arguments) {
  Heap& heap = interpreter.heap();
  const int depth = depth_of(subject, arguments);
  return heap.generator(
      [&interpreter, &heap, subject, arguments, next = Next(), step = Step()](Value& out) mutable {
        if (!next) {
          if (!truth(subject)) return false;
          step = mapping(interpreter, arguments);
          next = iterate(heap, subject);
        }
        Value item;
        if (!next(item)) return false;
        heap.budget().step();
        out = step(item);
        return true;
      },
      depth);
}

/// The predicate: truth of the item, of an attribute, or a named test.
Step choosing(Interpreter& interpreter, const Arguments& arguments, bool by_attribute) {
  Heap& heap = interpreter.heap();
  const size_t offset = by_attribute ? 1 : 0;
  if (arguments.positional.size() < offset) fail("the name of the attribute is missing", "pass it");
  const Value none = Value::none();
  const AttributePath path(heap, by_attribute ? &arguments.positional[0] : &none);
  if (arguments.positional.size() == offset) {
    return [&heap, path](const Value& item) { return Value::boolean(truth(path.look_up(heap, item))); };
  }
  const std::string& name = name_argument(arguments.positional[offset], "test");
  const ValueFunction test = require_test(name);
  return [&interpreter, &heap, path, test, rest = without_first(arguments, offset + 1)](const Value& item) {
    Arguments copy = rest;
    return test(interpreter, path.look_up(heap, item), copy);
  };
}

template <bool wanted, bool by_attribute>
Value choose(Interpreter& interpreter, const Value& subject, Arguments& arguments) {
  Heap& heap = interpreter.heap();
  int depth = depth_of(subject);
  for (const Value& value : arguments.positional) depth = std::max(depth, depth_of(value));
  return heap.generator(
      [&interpreter, &heap, subject, arguments, next = Next(), passes = Step()](Value& out) mutable {
        if (!next) {
          if (!truth(subject)) return false;
          passes = choosing(interpreter, arguments, by_attribute);
          next = iterate(heap, subject);
        }
        for (Value item; next(item);) {
          heap.budget().step();
          if (truth(passes(item)) != wanted) continue;
          out = std::move(item);
          return true;
        }
        return false;
      },
      depth);
}

Value unique(Interpreter& interpreter, const Value& subject, Arguments& arguments) {
  const auto values = bind("unique", arguments, {"case_sensitive", "attribute"}, 0);
  Heap& heap = interpreter.heap();
  const bool keep_case = flag(values[0]);
  return heap.generator(
      [&heap, subject, keep_case, path = AttributePath(heap, values[1]), next = Next(),
       seen = std::unordered_multimap<size_t, Value>()](Value& out) mutable {
        if (!next) next = iterate(heap, subject);
        for (Value item; next(item);) {
          heap.budget().step();
          Value key = path.look_up(heap, item);
          if (!keep_case) key = without_case(heap, key);
          const size_t hash = hash_of(heap.budget(), key);
          const auto [begin, end] = seen.equal_range(hash);
          bool known = false;
          for (auto at = begin; at != end && !known; ++at) known = equal(heap.budget(), at->second, key);
          if (known) continue;
          heap.budget().allocate(sizeof(Value) + 40);
          seen.emplace(hash, std::move(key));
          out = std::move(item);
          return true;
        }
        return false;
      },
      jinja::depth_of(subject));
}

constexpr NamedFunction kFilters[] = {
    {"map", map},
    {"reject", choose<false, false>},
    {"rejectattr", choose<false, true>},
    {"select", choose<true, false>},
    {"selectattr", choose<true, true>},
    {"unique", unique},
};

}  // namespace choice_filter
}  // namespace

std::span<const NamedFunction> choice_filters() {
  return choice_filter::kFilters;
}

}  // namespace stepforge::jinja
