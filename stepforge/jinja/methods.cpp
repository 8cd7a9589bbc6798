// SPDX-License-Identifier: Apache-2.0
// The methods of dicts, and the names of all types that are hidden or refused.
#include "stepforge/jinja/methods.h"

#include <algorithm>

#include "stepforge/jinja/operations.h"

namespace stepforge::jinja {
namespace {
namespace method_names {

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

constexpr Method kDict[] = {{"get", get},
                            {"items", view<View::Of::items>},
                            {"keys", view<View::Of::keys>},
                            {"values", view<View::Of::values>}};

using Names = std::span<const std::string_view>;

// The immutable sandbox hides these.
constexpr std::string_view kChangesList[] = {"append", "clear",  "extend",  "insert",
                                             "pop",    "remove", "reverse", "sort"};
constexpr std::string_view kChangesDict[] = {"clear", "pop", "popitem", "setdefault", "update"};

// Python and Jinja2 have these; no published template uses them.
constexpr std::string_view kRefusedString[] = {
    "casefold",   "center",    "count",        "encode",       "expandtabs", "find",    "format_map",
    "index",      "isalnum",   "isalpha",      "isascii",      "isdecimal",  "isdigit", "isidentifier",
    "islower",    "isnumeric", "isprintable",  "isspace",      "istitle",    "isupper", "ljust",
    "maketrans",  "partition", "removeprefix", "removesuffix", "rfind",      "rindex",  "rjust",
    "rpartition", "rsplit",    "swapcase",     "translate",    "zfill"};
constexpr std::string_view kRefusedList[] = {"copy", "count", "index"};
constexpr std::string_view kRefusedTuple[] = {"count", "index"};
constexpr std::string_view kRefusedRange[] = {"count", "index", "start", "step", "stop"};
constexpr std::string_view kRefusedDict[] = {"copy", "fromkeys"};
constexpr std::string_view kRefusedView[] = {"isdisjoint", "mapping"};
constexpr std::string_view kRefusedLoop[] = {"changed", "cycle", "depth", "depth0"};
constexpr std::string_view kRefusedMacro[] = {"arguments",     "caller",          "catch_kwargs",
                                              "catch_varargs", "explicit_caller", "name"};
constexpr std::string_view kRefusedNumber[] = {"as_integer_ratio", "bit_count",  "bit_length", "conjugate",
                                               "denominator",      "from_bytes", "imag",       "is_integer",
                                               "numerator",        "real",       "to_bytes"};
constexpr std::string_view kRefusedFloat[] = {"as_integer_ratio", "conjugate", "fromhex", "hex", "imag",
                                              "is_integer",       "real"};
constexpr std::string_view kRefusedGenerator[] = {"close", "send", "throw"};

constexpr std::pair<Kind, Names> kRefused[] = {
    {Kind::string, kRefusedString},  {Kind::list, kRefusedList},      {Kind::tuple, kRefusedTuple},
    {Kind::range, kRefusedRange},    {Kind::dict, kRefusedDict},      {Kind::view, kRefusedView},
    {Kind::loop, kRefusedLoop},      {Kind::macro, kRefusedMacro},    {Kind::boolean, kRefusedNumber},
    {Kind::integer, kRefusedNumber}, {Kind::floating, kRefusedFloat}, {Kind::generator, kRefusedGenerator}};

bool is_among(Names names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace method_names
}  // namespace

bool changes_value(Kind kind, std::string_view name) {
  return (kind == Kind::list && method_names::is_among(method_names::kChangesList, name)) ||
         (kind == Kind::dict && method_names::is_among(method_names::kChangesDict, name));
}

bool is_refused_attribute(Kind kind, std::string_view name) {
  return std::any_of(
      std::begin(method_names::kRefused), std::end(method_names::kRefused),
      [&](const auto& entry) { return entry.first == kind && method_names::is_among(entry.second, name); });
}

const Method* find_method(const Value& object, std::string_view name) {
  std::span<const Method> methods;
  if (object.is(Kind::string)) methods = string_methods();
  if (object.is(Kind::dict)) methods = method_names::kDict;
  const auto found = std::find_if(methods.begin(), methods.end(),
                                  [name](const Method& method) { return method.name == name; });
  return found == methods.end() ? nullptr : &*found;
}

}  // namespace stepforge::jinja
