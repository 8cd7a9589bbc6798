// SPDX-License-Identifier: Apache-2.0
#include "stepforge/jinja/attributes.h"

#include <algorithm>

#include "stepforge/base/format.h"
#include "stepforge/base/utf8.h"
#include "stepforge/jinja/markup.h"
#include "stepforge/jinja/methods.h"
#include "stepforge/jinja/operations.h"
#include "stepforge/jinja/runtime.h"
#include "stepforge/jinja/unicode.h"

namespace stepforge::jinja {
namespace {

Value loop_attribute(Heap& heap, Loop& loop, std::string_view name) {
  if (name == "index0") return Value::integer(loop.index0);
  if (name == "index") return Value::integer(loop.index0 + 1);
  if (name == "first") return Value::boolean(loop.index0 == 0);
  if (name == "last") return Value::boolean(loop.is_last());
  if (name == "length") return Value::integer(loop.length());
  if (name == "revindex0") return Value::integer(loop.length() - loop.index0 - 1);
  if (name == "revindex") return Value::integer(loop.length() - loop.index0);
  if (name == "previtem") return loop.index0 == 0 ? heap.undefined("there is no previous item") : loop.before;
  if (name == "nextitem") return loop.next_item();
  return {};
}

Value data_attribute(Heap& heap, const Value& object, std::string_view name) {
  if (object.is(Kind::loop)) return loop_attribute(heap, object.kept<Loop>(), name);
  if (!object.is(Kind::name_space)) return {};
  const Value* found = object.kept<Namespace>().find(name);
  return found == nullptr ? Value() : *found;
}

/// What Python's getattr finds, or a missing value. What the sandbox forbids is undefined.
Value python_attribute(Heap& heap, const Value& object, std::string_view name) {
  if (object.is(Kind::undefined)) fail_undefined(object);
  if (name.starts_with("__") && name.ends_with("__") && name.size() > 4) {
    return heap.undefined(format("the attribute {} is private", name));
  }
  if (object.is(Kind::function) || is_refused_attribute(object.kind(), name)) {
    fail_unsupported(format("the attribute {} of {}", name, type_name(object)),
                     "use other methods, filters or operators");
  }
  Value data = data_attribute(heap, object, name);
  if (!data.is(Kind::missing)) return data;
  if (changes_value(object.kind(), name)) {
    return heap.undefined(
        format("the method {} would change a {}, which templates may not", name, type_name(object)));
  }
  const Method* method = find_method(object, name);
  return method == nullptr ? Value() : heap.method(object, method);
}

bool is_hashable(const Value& key) {
  if (key.is(Kind::tuple)) return std::all_of(key.items().begin(), key.items().end(), is_hashable);
  return !key.is(Kind::list) && !key.is(Kind::dict) &&
         !(key.is(Kind::view) && key.view().of != View::Of::values);
}

/// What Python's `object[key]` finds, or a missing value.
Value python_item(Heap& heap, const Value& object, const Value& key) {
  if (object.is(Kind::undefined)) fail_undefined(object);
  if (object.is(Kind::dict)) {
    if (!is_hashable(key)) return {};
    const Value* found = find_in(heap.budget(), object.dict(), key);
    return found == nullptr ? Value() : *found;
  }
  if (!key.is_integral()) return {};
  if (object.is(Kind::string)) {
    const Value found = character(heap, object, key.integer());
    return is_safe(object) ? made_safe(heap, found) : found;
  }
  if (!object.is_sequence() && !object.is(Kind::range)) return {};
  const int64_t size = length(object);
  const int64_t index = key.integer() < 0 ? key.integer() + size : key.integer();
  if (index < 0 || index >= size) return {};
  return object.is(Kind::range) ? item_of_range(object.range(), index)
                                : object.items()[static_cast<size_t>(index)];
}

}  // namespace

Value get_attribute(Heap& heap, const Value& object, std::string_view name) {
  Value found = python_attribute(heap, object, name);
  if (!found.is(Kind::missing)) return found;
  if (object.is(Kind::dict)) {
    if (const Value* item = find_in(object.dict(), name)) return *item;
  }
  return heap.undefined(format("a {} has no attribute {}", type_name(object), name));
}

Value get_item(Heap& heap, const Value& object, const Value& key) {
  Value found = python_item(heap, object, key);
  if (!found.is(Kind::missing)) return found;
  if (key.is(Kind::string)) {
    found = python_attribute(heap, object, key.text());
    if (!found.is(Kind::missing)) return found;
    return heap.undefined(
        format("a {} has no element {}", type_name(object), quoted_for_message(key.text())));
  }
  return heap.undefined(format("a {} has no such element", type_name(object)));
}

namespace {

struct Bounds {
  int64_t start;
  int64_t step;
  int64_t count;
};

int64_t bound(const Value& value, int64_t size, int64_t low, int64_t high, int64_t fallback) {
  if (value.is(Kind::none)) return fallback;
  if (!value.is_integral())
    fail(format("a slice needs integers or none, not {}", type_name(value)), "convert with | int");
  const int64_t index = value.integer() < 0 ? value.integer() + size : value.integer();
  return std::clamp(index, low, high);
}

Bounds bounds_of(int64_t size, const Value& start, const Value& stop, const Value& step) {
  int64_t stride = 1;
  if (!step.is(Kind::none)) {
    if (!step.is_integral())
      fail(format("a slice needs integers or none, not {}", type_name(step)), "convert with | int");
    stride = step.integer();
  }
  if (stride == 0) fail("the step of a slice is zero", "use another step");
  stride = std::clamp<int64_t>(stride, -(INT64_MAX / 4), INT64_MAX / 4);
  const int64_t low = stride > 0 ? 0 : -1;
  const int64_t high = stride > 0 ? size : size - 1;
  const int64_t first = bound(start, size, low, high, stride > 0 ? low : high);
  const int64_t last = bound(stop, size, low, high, stride > 0 ? high : low);
  const int64_t span = stride > 0 ? last - first : first - last;
  const int64_t magnitude = stride > 0 ? stride : -stride;
  return {first, stride, span <= 0 ? 0 : (span + magnitude - 1) / magnitude};
}

std::string sliced(Heap& heap, const Text& text, const Bounds& bounds) {
  heap.budget().read_bytes(text.bytes.size());
  if (bounds.step == 1) {
    const size_t begin =
        text.ascii() ? static_cast<size_t>(bounds.start) : offset_of(text.bytes, bounds.start);
    const std::string_view rest = std::string_view(text.bytes).substr(begin);
    return std::string(
        rest.substr(0, text.ascii() ? static_cast<size_t>(bounds.count) : offset_of(rest, bounds.count)));
  }
  std::vector<size_t> offsets;
  heap.budget().allocate(static_cast<size_t>(text.length) * sizeof(size_t));
  for (size_t at = 0; at < text.bytes.size();
       at += utf8_sequence_length(std::string_view(text.bytes).substr(at)))
    offsets.push_back(at);
  offsets.push_back(text.bytes.size());
  std::string result;
  for (int64_t i = 0; i < bounds.count; ++i) {
    const auto at = static_cast<size_t>(bounds.start + i * bounds.step);
    result.append(text.bytes, offsets[at], offsets[at + 1] - offsets[at]);
  }
  return result;
}

}  // namespace

Value get_slice(Heap& heap, const Value& object, const Value& start, const Value& stop, const Value& step) {
  if (object.is(Kind::undefined)) fail_undefined(object);
  if (!object.is(Kind::string) && !object.is_sequence()) {
    // Python raises, or gives a range; Jinja2's compiler makes some of these undefined.
    fail_unsupported(format("a slice of {}", type_name(object)),
                     "slice strings or lists; convert with | list");
  }
  const Bounds bounds = bounds_of(length(object), start, stop, step);
  if (object.is(Kind::string)) return heap.text(sliced(heap, object.string(), bounds), is_safe(object));
  std::vector<Value> items;
  heap.budget().step(bounds.count / 4);
  for (int64_t i = 0; i < bounds.count; ++i)
    items.push_back(object.items()[static_cast<size_t>(bounds.start + i * bounds.step)]);
  return object.is(Kind::list) ? heap.list(std::move(items)) : heap.tuple(std::move(items));
}

}  // namespace stepforge::jinja
