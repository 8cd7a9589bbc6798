// SPDX-License-Identifier: Apache-2.0
// Filters that order sequences and take items of them.
#include <algorithm>
#include <numeric>

#include "stepforge/base/format.h"
#include "stepforge/jinja/filters.h"
#include "stepforge/jinja/markup.h"
#include "stepforge/jinja/methods.h"
#include "stepforge/jinja/operations.h"
#include "stepforge/jinja/unicode.h"

namespace stepforge::jinja {
namespace {
namespace sequence_filter {

/// The items in the order of their keys; equal ones keep their order.
std::vector<Value> sorted(Heap& heap, const std::vector<Value>& items, const std::vector<Value>& keys,
                          bool reverse) {
  std::vector<size_t> order(items.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t left, size_t right) {
    return reverse ? less(heap, keys[right], keys[left]) : less(heap, keys[left], keys[right]);
  });
  std::vector<Value> result;
  result.reserve(items.size());
  for (const size_t i : order) result.push_back(items[i]);
  return result;
}

Value sort(Interpreter& interpreter, const Value& subject, Arguments& arguments) {
  const auto values = bind("sort", arguments, {"reverse", "case_sensitive", "attribute"}, 0);
  Heap& heap = interpreter.heap();
  if (values[2] != nullptr && values[2]->is(Kind::string) && values[2]->text().find(',') != std::string::npos)
    fail_unsupported("sort by several attributes", "sort by one");
  const AttributePath path(heap, values[2]);
  const bool keep_case = flag(values[1]);
  const std::vector<Value> items = all_of(heap, subject);
  std::vector<Value> keys;
  for (const Value& item : items) {
    const Value key = path.look_up(heap, item);
    // Lists of one item, as in Jinja2: equal values without an order, such as none, then do not fail.
    keys.push_back(heap.list({keep_case ? key : without_case(heap, key)}));
  }
  return heap.list(sorted(heap, items, keys, flag(values[0])));
}

Value dictsort(Interpreter& interpreter, const Value& subject, Arguments& arguments) {
  const auto values = bind("dictsort", arguments, {"case_sensitive", "by", "reverse"}, 0);
  Heap& heap = interpreter.heap();
  const std::string by = values[1] == nullptr ? "key" : text_argument("dictsort", *values[1]);
  if (by != "key" && by != "value") fail("dictsort: by must be key or value");
  if (!subject.is(Kind::dict))
    fail(format("dictsort needs a dict, not {}", type_name(subject)), "pass a dict");
  const std::vector<Value> items = all_of(heap, heap.view(View::Of::items, subject));
  std::vector<Value> keys;
  for (const Value& item : items) {
    const Value& key = item.items()[by == "key" ? 0 : 1];
    keys.push_back(flag(values[0]) ? key : without_case(heap, key));
  }
  return heap.list(sorted(heap, items, keys, flag(values[2])));
}

template <bool greatest>
Value extreme(Interpreter& interpreter, const Value& subject, Arguments& arguments) {
  const auto values = bind("min or max", arguments, {"case_sensitive", "attribute"}, 0);
  Heap& heap = interpreter.heap();
  const AttributePath path(heap, values[1]);
  const bool keep_case = flag(values[0]);
  const Next next = iterate(heap, subject);
  Value best;
  Value best_key;
  for (Value item; next(item);) {
    Value key = path.look_up(heap, item);
    if (!keep_case) key = without_case(heap, key);
    if (best.is(Kind::missing) || (greatest ? less(heap, best_key, key) : less(heap, key, best_key))) {
      best = std::move(item);
      best_key = std::move(key);
    }
  }
  return best.is(Kind::missing) ? heap.undefined("the sequence is empty: it has no smallest or greatest item")
                                : best;
}

Value first(Interpreter& interpreter, const Value& subject, Arguments& arguments) {
  bind("first", arguments, {}, 0);
  Heap& heap = interpreter.heap();
  Value item;
  return iterate(heap, subject)(item) ? item : heap.undefined("the sequence is empty: it has no first item");
}

Value last(Interpreter& interpreter, const Value& subject, Arguments& arguments) {
  bind("last", arguments, {}, 0);
  Heap& heap = interpreter.heap();
  if (subject.is(Kind::generator) || subject.is(Kind::loop))
    fail(format("{} cannot be reversed", type_name(subject)), "convert it with | list");
  if (subject.is(Kind::string)) {
    Value item = character(heap, subject, -1);
    if (is_safe(subject)) item = made_safe(heap, item);
    if (!item.is(Kind::missing)) return item;
  } else {
    const std::vector<Value> items = all_of(heap, subject);
    if (!items.empty()) return items.back();
  }
  return heap.undefined("the sequence is empty: it has no last item");
}

Value reverse(Interpreter& interpreter, const Value& subject, Arguments& arguments) {
  bind("reverse", arguments, {}, 0);
  Heap& heap = interpreter.heap();
  if (subject.is(Kind::string)) {
    std::string result;
    std::string_view rest = subject.text();
    result.reserve(rest.size());
    while (!rest.empty()) {
      result += last_character(rest);
      rest.remove_suffix(last_character(rest).size());
    }
    return heap.text(std::move(result), is_safe(subject));
  }
  std::vector<Value> items = all_of(heap, subject);
  std::reverse(items.begin(), items.end());
  Value list = heap.list(std::move(items));
  // As in Python, a list for generators and an iterator for sequences.
  if (subject.is(Kind::generator) || subject.is(Kind::loop)) return list;
  return heap.generator(iterate(heap, list), depth_of(list));
}

Value list(Interpreter& interpreter, const Value& subject, Arguments& arguments) {
  bind("list", arguments, {}, 0);
  return interpreter.heap().list(all_of(interpreter.heap(), subject));
}

Value items(Interpreter& interpreter, const Value& subject, Arguments& arguments) {
  bind("items", arguments, {}, 0);
  Heap& heap = interpreter.heap();
  return heap.generator(
      [&heap, subject, next = Next()](Value& out) mutable {
        if (subject.is(Kind::undefined)) return false;
        if (!subject.is(Kind::dict))
          fail(format("items needs a dict, not {}", type_name(subject)), "pass a dict");
        if (!next) next = iterate(heap, heap.view(View::Of::items, subject));
        return next(out);
      },
      depth_of(subject) + 1);
}

constexpr NamedFunction kFilters[] = {
    {"dictsort", dictsort}, {"first", first},        {"items", items},     {"last", last}, {"list", list},
    {"max", extreme<true>}, {"min", extreme<false>}, {"reverse", reverse}, {"sort", sort},
};

}  // namespace sequence_filter
}  // namespace

std::span<const NamedFunction> sequence_filters() {
  return sequence_filter::kFilters;
}

}  // namespace stepforge::jinja
