// SPDX-License-Identifier: Apache-2.0
// Comparison, containment and iteration; arithmetic is in arithmetic.cpp.
#include "stepforge/jinja/operations.h"

#include <cmath>
#include <limits>

#include "stepforge/base/format.h"
#include "stepforge/base/utf8.h"
#include "stepforge/jinja/runtime.h"
#include "stepforge/jinja/unicode.h"

namespace stepforge::jinja {

void fail_undefined(const Value& value) {
  fail(value.undefined().message, "pass the variable, or test it with `is defined`");
}

bool truth(const Value& value) {
  switch (value.kind()) {
    case Kind::missing:
    case Kind::undefined:
    case Kind::none:
      return false;
    case Kind::boolean:
    case Kind::integer:
      return value.integer() != 0;
    case Kind::floating:
      return value.floating() != 0;
    default:
      return length_or_none(value) != 0;
  }
}

namespace {

/// Exact: a long double holds every integer of 64 bits and every double.
long double exact(const Value& number) {
  return number.is_integral() ? static_cast<long double>(number.integer()) : number.floating();
}

/// -1, 0, 1, or 2 if one is not a number.
int compare_numbers(const Value& left, const Value& right) {
  static_assert(std::numeric_limits<long double>::digits >= 64);
  const long double first = exact(left);
  const long double second = exact(right);
  if (std::isnan(first) || std::isnan(second)) return 2;
  return first < second ? -1 : first > second ? 1 : 0;
}

bool equal_dicts(Budget& budget, const Dict& left, const Dict& right) {
  if (left.items.size() != right.items.size()) return false;
  for (const auto& [key, value] : left.items) {
    const Value* other = find_in(budget, right, key);
    if (other == nullptr || !equal(budget, value, *other)) return false;
  }
  return true;
}

bool equal_items(Budget& budget, const std::vector<Value>& left, const std::vector<Value>& right) {
  if (left.size() != right.size()) return false;
  for (size_t i = 0; i < left.size(); ++i) {
    if (!equal(budget, left[i], right[i])) return false;
  }
  return true;
}

}  // namespace

bool equal(Budget& budget, const Value& left, const Value& right) {
  budget.step();
  if (left.is_number() && right.is_number()) return compare_numbers(left, right) == 0;
  if (left.kind() != right.kind()) return false;
  switch (left.kind()) {
    case Kind::undefined:
    case Kind::none:
      return true;
    case Kind::string:
      budget.read_bytes(std::min(left.text().size(), right.text().size()));
      return left.text() == right.text();
    case Kind::list:
    case Kind::tuple:
      return left.identity() == right.identity() || equal_items(budget, left.items(), right.items());
    case Kind::dict:
      return left.identity() == right.identity() || equal_dicts(budget, left.dict(), right.dict());
    default:
      if (left.is(Kind::range) || left.is(Kind::view) || left.is(Kind::method))
        fail_unsupported(format("comparing a {} with ==", type_name(left)), "convert it with | list");
      return left.identity() == right.identity();
  }
}

namespace {

[[noreturn]] void fail_order(const Value& left, const Value& right, std::string_view op) {
  if (left.is(Kind::undefined)) fail_undefined(left);
  if (right.is(Kind::undefined)) fail_undefined(right);
  fail(format("'{}' is not supported between {} and {}", op, type_name(left), type_name(right)),
       "compare values of one type");
}

bool ordered(Heap& heap, Operator op, const Value& left, const Value& right);

bool ordered_items(Heap& heap, Operator op, const std::vector<Value>& left, const std::vector<Value>& right) {
  const size_t common = std::min(left.size(), right.size());
  heap.budget().step(static_cast<int64_t>(common / 4));
  for (size_t i = 0; i < common; ++i) {
    if (!equal(heap.budget(), left[i], right[i])) return ordered(heap, op, left[i], right[i]);
  }
  return ordered(heap, op, Value::integer(static_cast<int64_t>(left.size())),
                 Value::integer(static_cast<int64_t>(right.size())));
}

bool holds(Operator op, int order) {
  if (order == 2) return false;
  return op == Operator::less         ? order < 0
         : op == Operator::less_equal ? order <= 0
         : op == Operator::greater    ? order > 0
                                      : order >= 0;
}

bool ordered(Heap& heap, Operator op, const Value& left, const Value& right) {
  if (left.is_number() && right.is_number()) return holds(op, compare_numbers(left, right));
  if (left.is(Kind::string) && right.is(Kind::string)) {
    heap.budget().read_bytes(std::min(left.text().size(), right.text().size()));
    // The order of UTF-8 bytes is that of code points.
    const int order = left.text().compare(right.text());
    return holds(op, order < 0 ? -1 : order > 0 ? 1 : 0);
  }
  if (left.is_sequence() && left.kind() == right.kind())
    return ordered_items(heap, op, left.items(), right.items());
  static constexpr std::string_view kNames[] = {"<", "<=", ">", ">="};
  fail_order(left, right, kNames[static_cast<int>(op) - static_cast<int>(Operator::less)]);
}

}  // namespace

bool less(Heap& heap, const Value& left, const Value& right) {
  heap.budget().step();
  return ordered(heap, Operator::less, left, right);
}

bool compare(Heap& heap, Operator op, const Value& left, const Value& right) {
  switch (op) {
    case Operator::equal:
      return equal(heap.budget(), left, right);
    case Operator::not_equal:
      return !equal(heap.budget(), left, right);
    case Operator::in:
      return contains(heap, right, left);
    case Operator::not_in:
      return !contains(heap, right, left);
    default:
      return ordered(heap, op, left, right);
  }
}

bool contains(Heap& heap, const Value& container, const Value& item) {
  switch (container.kind()) {
    case Kind::string:
      if (!item.is(Kind::string))
        fail(format("'in' a string needs a string, not {}", type_name(item)), "convert it with | string");
      heap.budget().read_bytes(container.text().size());
      return container.text().find(item.text()) != std::string::npos;
    case Kind::dict:
      return find_in(heap.budget(), container.dict(), item) != nullptr;
    case Kind::view:
      if (container.view().of == View::Of::keys)
        return find_in(heap.budget(), *container.view().dict, item) != nullptr;
      break;
    default:
      break;
  }
  const Next next = iterate(heap, container);
  Value candidate;
  while (next(candidate)) {
    heap.budget().step();
    if (equal(heap.budget(), candidate, item)) return true;
  }
  return false;
}

size_t hash_of(Budget& budget, const Value& value) {
  switch (value.kind()) {
    case Kind::list:
    case Kind::dict:
    case Kind::view:
      fail(format("{} cannot be a key", type_name(value)), "use strings, numbers or tuples as keys");
    case Kind::string:
      budget.read_bytes(value.text().size());
      return std::hash<std::string_view>()(value.text());
    case Kind::boolean:
    case Kind::integer:
      return std::hash<double>()(static_cast<double>(value.integer()));
    case Kind::floating:
      return std::hash<double>()(value.floating());
    case Kind::tuple: {
      size_t hash = 7;
      budget.step();
      for (const Value& item : value.items()) hash = hash * 1000003 + hash_of(budget, item);
      return hash;
    }
    case Kind::range:
      return static_cast<size_t>(value.range().length);
    case Kind::none:
    case Kind::undefined:
      return static_cast<size_t>(value.kind());
    case Kind::method:
      return std::hash<const void*>()(value.method().method);
    default:
      return std::hash<const void*>()(value.identity());
  }
}

bool is_iterable(const Value& value) {
  return value.is_sequence() || value.is(Kind::undefined) || value.is(Kind::string) || value.is(Kind::dict) ||
         value.is(Kind::range) || value.is(Kind::view) || value.is(Kind::generator) || value.is(Kind::loop);
}

namespace {

Next iterate_text(Heap& heap, const Value& value) {
  return [&heap, value, at = size_t{0}](Value& out) mutable {
    const std::string_view rest = std::string_view(value.text()).substr(at);
    if (rest.empty()) return false;
    const size_t length = utf8_sequence_length(rest);
    out = heap.text(std::string(rest.substr(0, length)));
    at += length;
    return true;
  };
}

}  // namespace

Next iterate(Heap& heap, const Value& value) {
  switch (value.kind()) {
    case Kind::undefined:
      return [](Value&) { return false; };
    case Kind::string:
      return iterate_text(heap, value);
    case Kind::list:
    case Kind::tuple:
      return [value, at = size_t{0}](Value& out) mutable {
        if (at == value.items().size()) return false;
        out = value.items()[at++];
        return true;
      };
    case Kind::dict:
      return [value, at = size_t{0}](Value& out) mutable {
        if (at == value.dict().items.size()) return false;
        out = value.dict().items[at++].first;
        return true;
      };
    case Kind::range:
      return [value, at = int64_t{0}](Value& out) mutable {
        if (at == value.range().length) return false;
        out = item_of_range(value.range(), at++);
        return true;
      };
    case Kind::view:
      return [&heap, value, at = size_t{0}](Value& out) mutable {
        if (at == value.view().dict->items.size()) return false;
        out = item_of_view(heap, value.view(), at++);
        return true;
      };
    case Kind::generator:
      return [&heap, value](Value& out) {
        const Budget::Level level(heap.budget());
        heap.budget().step();
        return value.generator().next(out);
      };
    case Kind::loop:
      fail_unsupported("iterating over `loop`", "iterate over the list again");
    default:
      fail(format("{} is not iterable", type_name(value)), "loop over a list, a dict or a string");
  }
}

std::vector<Value> all_of(Heap& heap, const Value& value) {
  std::vector<Value> result;
  const Next next = iterate(heap, value);
  for (Value item; next(item);) {
    heap.budget().allocate(sizeof(Value));
    heap.budget().step();
    result.push_back(std::move(item));
  }
  return result;
}

int64_t length_or_none(const Value& value) {
  switch (value.kind()) {
    case Kind::undefined:
      return 0;
    case Kind::string:
      return value.string().length;
    case Kind::list:
    case Kind::tuple:
      return static_cast<int64_t>(value.items().size());
    case Kind::dict:
      return static_cast<int64_t>(value.dict().items.size());
    case Kind::range:
      return value.range().length;
    case Kind::view:
      return static_cast<int64_t>(value.view().dict->items.size());
    case Kind::loop:
      return value.kept<Loop>().length();
    default:
      return -1;
  }
}

int64_t length(const Value& value) {
  const int64_t result = length_or_none(value);
  if (result < 0) fail(format("{} has no length", type_name(value)), "use a string, a list or a dict");
  return result;
}

Value item_of_range(const Range& range, int64_t index) {
  return Value::integer(range.start + index * range.step);
}

Value item_of_view(Heap& heap, const View& view, size_t position) {
  const auto& [key, value] = view.dict->items[position];
  if (view.of == View::Of::keys) return key;
  return view.of == View::Of::values ? value : heap.tuple({key, value});
}

Value character(Heap& heap, const Value& text, int64_t index) {
  const Text& string = text.string();
  if (index < 0) index += string.length;
  if (index < 0 || index >= string.length) return {};
  if (string.ascii()) return heap.text(string.bytes.substr(static_cast<size_t>(index), 1));
  heap.budget().read_bytes(string.bytes.size());
  const std::string_view rest = std::string_view(string.bytes).substr(offset_of(string.bytes, index));
  return heap.text(std::string(rest.substr(0, utf8_sequence_length(rest))));
}

}  // namespace stepforge::jinja
