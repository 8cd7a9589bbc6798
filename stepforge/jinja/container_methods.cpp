// SPDX-License-Identifier: Apache-2.0
// The methods of lists, tuples, dicts, ranges, numbers, loops and cyclers.
#include <algorithm>

#include "stepforge/base/format.h"
#include "stepforge/jinja/formatting.h"
#include "stepforge/jinja/methods.h"
#include "stepforge/jinja/operations.h"

namespace stepforge::jinja {
namespace {
namespace container_method {

Value count(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  const auto values = bind("count()", arguments, {""}, 1);
  Heap& heap = interpreter.heap();
  int64_t found = 0;
  for (const Value& item : all_of(heap, self)) found += equal(heap.budget(), item, *values[0]) ? 1 : 0;
  return Value::integer(found);
}

Value index(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  const auto values = bind("index()", arguments, {"", "", ""}, 1);
  Heap& heap = interpreter.heap();
  const std::vector<Value> items = all_of(heap, self);
  const auto size = static_cast<int64_t>(items.size());
  const auto bound = [&](const Value* value, int64_t fallback) {
    if (value == nullptr) return fallback;
    const int64_t given = integer_argument("index()", *value);
    return std::clamp<int64_t>(given < 0 ? given + size : given, 0, size);
  };
  const int64_t end = bound(values[2], size);
  for (int64_t i = bound(values[1], 0); i < end; ++i) {
    if (equal(heap.budget(), items[static_cast<size_t>(i)], *values[0])) return Value::integer(i);
  }
  fail("index() does not find the value", "test it with `in` first");
}

Value copy(Interpreter&, const Value& self, Arguments& arguments) {
  bind("copy()", arguments, {}, 0);
  return self;
}

template <View::Of of>
Value view(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  bind("the method", arguments, {}, 0);
  return interpreter.heap().view(of, self);
}

Value get(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  const auto values = bind("get()", arguments, {"", ""}, 1);
  const Value* found = find_in(interpreter.heap().budget(), self.dict(), *values[0]);
  if (found != nullptr) return *found;
  return values[1] == nullptr ? Value::none() : *values[1];
}

Value cycle(Interpreter&, const Value& self, Arguments& arguments) {
  if (!arguments.named.empty() || arguments.positional.empty())
    fail("loop.cycle() needs values", "pass one or more");
  const auto position = static_cast<uint64_t>(self.kept<Loop>().index0) % arguments.positional.size();
  return arguments.positional[position];
}

Value changed(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  if (!arguments.named.empty()) fail("loop.changed() takes no names", "pass the values only");
  Heap& heap = interpreter.heap();
  auto& loop = self.kept<Loop>();
  Value values = heap.tuple(arguments.positional);
  if (loop.changed.is(Kind::tuple) && equal(heap.budget(), loop.changed, values))
    return Value::boolean(false);
  loop.changed = std::move(values);
  return Value::boolean(true);
}

Value next(Interpreter&, const Value& self, Arguments& arguments) {
  bind("next()", arguments, {}, 0);
  auto& cycler = self.kept<Cycler>();
  Value result = cycler.items[cycler.position];
  cycler.position = (cycler.position + 1) % cycler.items.size();
  return result;
}

Value reset(Interpreter&, const Value& self, Arguments& arguments) {
  bind("reset()", arguments, {}, 0);
  self.kept<Cycler>().position = 0;
  return Value::none();
}

Value is_integer(Interpreter&, const Value& self, Arguments& arguments) {
  bind("is_integer()", arguments, {}, 0);
  return Value::boolean(
      self.floating() ==
          static_cast<double>(static_cast<int64_t>(std::clamp(self.floating(), -9e15, 9e15))) ||
      (std::abs(self.floating()) > 9e15 && std::abs(self.floating()) <= 1.7976931348623157e308));
}

constexpr Method kList[] = {{"append", nullptr, true},  {"clear", nullptr, true},  {"copy", copy},
                            {"count", count},           {"extend", nullptr, true}, {"index", index},
                            {"insert", nullptr, true},  {"pop", nullptr, true},    {"remove", nullptr, true},
                            {"reverse", nullptr, true}, {"sort", nullptr, true}};
constexpr Method kTuple[] = {{"count", count}, {"index", index}};
constexpr Method kDict[] = {{"clear", nullptr, true},
                            {"copy", copy},
                            {"fromkeys", nullptr},
                            {"get", get},
                            {"items", view<View::Of::items>},
                            {"keys", view<View::Of::keys>},
                            {"pop", nullptr, true},
                            {"popitem", nullptr, true},
                            {"setdefault", nullptr, true},
                            {"update", nullptr, true},
                            {"values", view<View::Of::values>}};
constexpr Method kLoop[] = {{"changed", changed}, {"cycle", cycle}};
constexpr Method kCycler[] = {{"next", next}, {"reset", reset}};
constexpr Method kInteger[] = {{"as_integer_ratio", nullptr}, {"bit_count", nullptr},
                               {"bit_length", nullptr},       {"conjugate", nullptr},
                               {"from_bytes", nullptr},       {"to_bytes", nullptr}};
constexpr Method kFloat[] = {{"as_integer_ratio", nullptr},
                             {"conjugate", nullptr},
                             {"fromhex", nullptr},
                             {"hex", nullptr},
                             {"is_integer", is_integer}};
constexpr Method kView[] = {{"isdisjoint", nullptr}, {"mapping", nullptr}};
constexpr Method kGenerator[] = {{"close", nullptr}, {"send", nullptr}, {"throw", nullptr}};

std::span<const Method> methods_of(const Value& object) {
  switch (object.kind()) {
    case Kind::string:
      return string_methods();
    case Kind::list:
      return kList;
    case Kind::tuple:
    case Kind::range:
      return kTuple;
    case Kind::dict:
      return kDict;
    case Kind::loop:
      return kLoop;
    case Kind::cycler:
      return kCycler;
    case Kind::boolean:
    case Kind::integer:
      return kInteger;
    case Kind::floating:
      return kFloat;
    case Kind::view:
      return kView;
    case Kind::generator:
      return kGenerator;
    default:
      return {};
  }
}

}  // namespace container_method
}  // namespace

const Method* find_method(const Value& object, std::string_view name) {
  const std::span<const Method> methods = container_method::methods_of(object);
  const auto found = std::find_if(methods.begin(), methods.end(),
                                  [name](const Method& method) { return method.name == name; });
  return found == methods.end() ? nullptr : &*found;
}

}  // namespace stepforge::jinja
