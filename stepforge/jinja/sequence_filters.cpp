// SPDX-License-Identifier: Apache-2.0
// Filters that order, group and divide sequences.
#include <algorithm>
#include <numeric>

#include "stepforge/base/format.h"
#include "stepforge/base/utf8.h"
#include "stepforge/jinja/filters.h"
#include "stepforge/jinja/markup.h"
#include "stepforge/jinja/methods.h"
#include "stepforge/jinja/operations.h"

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

/// Reads `name` or "a,b" as paths.
std::vector<AttributePath> paths_of(Heap& heap, const Value* attribute) {
  std::vector<AttributePath> paths;
  if (attribute == nullptr || !attribute->is(Kind::string)) {
    paths.emplace_back(heap, attribute);
    return paths;
  }
  std::string_view rest = attribute->text();
  while (true) {
    const size_t comma = rest.find(',');
    const Value part = heap.text(std::string(rest.substr(0, comma)));
    paths.emplace_back(heap, &part);
    if (comma == std::string_view::npos) return paths;
    rest.remove_prefix(comma + 1);
  }
}

Value sort(Interpreter& interpreter, const Value& subject, Arguments& arguments) {
  const auto values = bind("sort", arguments, {"reverse", "case_sensitive", "attribute"}, 0);
  Heap& heap = interpreter.heap();
  const std::vector<AttributePath> paths = paths_of(heap, values[2]);
  const bool keep_case = flag(values[1]);
  const std::vector<Value> items = all_of(heap, subject);
  std::vector<Value> keys;
  for (const Value& item : items) {
    std::vector<Value> parts;
    for (const AttributePath& path : paths) {
      const Value part = path.look_up(heap, item);
      parts.push_back(keep_case ? part : without_case(heap, part));
    }
    keys.push_back(heap.list(std::move(parts)));
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

Value groupby(Interpreter& interpreter, const Value& subject, Arguments& arguments) {
  const auto values = bind("groupby", arguments, {"attribute", "default", "case_sensitive"}, 1);
  Heap& heap = interpreter.heap();
  const AttributePath path(heap, values[0]);
  const bool keep_case = flag(values[2]);
  const auto key_of = [&](const Value& item) {
    const Value key = path.look_up(heap, item, values[1]);
    return keep_case ? key : without_case(heap, key);
  };
  const std::vector<Value> items = all_of(heap, subject);
  std::vector<Value> keys;
  for (const Value& item : items) keys.push_back(key_of(item));
  std::vector<Value> groups;
  std::vector<Value> group;
  Value group_key;
  const auto finish = [&] {
    if (group.empty()) return;
    Value shown = keep_case ? group_key : path.look_up(heap, group[0], values[1]);
    groups.push_back(heap.group(std::move(shown), heap.list(std::exchange(group, {}))));
  };
  for (const Value& item : sorted(heap, items, keys, false)) {
    Value key = key_of(item);
    if (!group.empty() && !equal(heap.budget(), key, group_key)) finish();
    if (group.empty()) group_key = std::move(key);
    group.push_back(item);
  }
  finish();
  return heap.list(std::move(groups));
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
      size_t at = rest.size() - 1;
      while (at > 0 && (static_cast<unsigned char>(rest[at]) & 0xC0) == 0x80) --at;
      result += rest.substr(at);
      rest = rest.substr(0, at);
    }
    return heap.text(std::move(result), is_safe(subject));
  }
  std::vector<Value> items = all_of(heap, subject);
  std::reverse(items.begin(), items.end());
  Value list = heap.list(std::move(items));
  // Python gives a list for what it can only read forwards, and an iterator for the rest.
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

Value sum(Interpreter& interpreter, const Value& subject, Arguments& arguments) {
  const auto values = bind("sum", arguments, {"attribute", "start"}, 0);
  Heap& heap = interpreter.heap();
  const AttributePath path(heap, values[0]);
  Value result = values[1] == nullptr ? Value::integer(0) : *values[1];
  if (result.is(Kind::string)) fail("sum cannot add strings", "use | join");
  const Next next = iterate(heap, subject);
  for (Value item; next(item);) {
    heap.budget().step();
    result = arithmetic(heap, Operator::add, result, path.look_up(heap, item));
  }
  return result;
}

Value batch(Interpreter& interpreter, const Value& subject, Arguments& arguments) {
  const auto values = bind("batch", arguments, {"linecount", "fill_with"}, 1);
  Heap& heap = interpreter.heap();
  const Value count = *values[0];
  const Value fill = values[1] == nullptr ? Value::none() : *values[1];
  return heap.generator(
      [&heap, count, fill, subject, next = Next(), waiting = Value(), ended = false](Value& out) mutable {
        if (!next) next = iterate(heap, subject);
        std::vector<Value> row;
        if (!waiting.is(Kind::missing)) row.push_back(std::exchange(waiting, Value()));
        for (Value item; !ended && next(item);) {
          heap.budget().step();
          if (equal(heap.budget(), count, Value::integer(static_cast<int64_t>(row.size())))) {
            waiting = std::move(item);
            out = heap.list(std::move(row));
            return true;
          }
          row.push_back(std::move(item));
        }
        ended = true;
        if (row.empty()) return false;
        if (!fill.is(Kind::none)) {
          const int64_t missing = integer_argument("batch", count) - static_cast<int64_t>(row.size());
          if (missing > 0) {
            heap.budget().allocate(static_cast<size_t>(std::min<int64_t>(missing, INT64_MAX / 64)) *
                                   sizeof(Value));
            row.insert(row.end(), static_cast<size_t>(missing), fill);
          }
        }
        out = heap.list(std::move(row));
        return true;
      },
      std::max(depth_of(subject), depth_of(fill)) + 1);
}

Value slice(Interpreter& interpreter, const Value& subject, Arguments& arguments) {
  const auto values = bind("slice", arguments, {"slices", "fill_with"}, 1);
  Heap& heap = interpreter.heap();
  const Value count = *values[0];
  const Value fill = values[1] == nullptr ? Value::none() : *values[1];
  return heap.generator(
      [&heap, count, fill, subject, items = std::vector<Value>(), begun = false,
       at = int64_t{0}](Value& out) mutable {
        if (!std::exchange(begun, true)) items = all_of(heap, subject);
        const int64_t slices = integer_argument("slice", count);
        if (slices == 0) fail("slice into 0 parts", "pass 1 or more");
        if (at >= slices) return false;
        const auto size = static_cast<int64_t>(items.size());
        const int64_t longer = size % slices;
        const int64_t begin = at * (size / slices) + std::min(at, longer);
        const int64_t end = begin + size / slices + (at < longer ? 1 : 0);
        std::vector<Value> part(items.begin() + begin, items.begin() + end);
        if (!fill.is(Kind::none) && at >= longer) part.push_back(fill);
        ++at;
        out = heap.list(std::move(part));
        return true;
      },
      std::max(depth_of(subject), depth_of(fill)) + 1);
}

constexpr NamedFunction kFilters[] = {
    {"batch", batch},     {"dictsort", dictsort}, {"first", first},
    {"groupby", groupby}, {"items", items},       {"last", last},
    {"list", list},       {"max", extreme<true>}, {"min", extreme<false>},
    {"reverse", reverse}, {"slice", slice},       {"sort", sort},
    {"sum", sum},
};

}  // namespace sequence_filter
}  // namespace

std::span<const NamedFunction> sequence_filters() {
  return sequence_filter::kFilters;
}

}  // namespace stepforge::jinja
