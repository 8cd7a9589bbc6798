// SPDX-License-Identifier: Apache-2.0
#include "stepforge/jinja/value.h"

namespace stepforge::jinja {

const std::string& Value::text() const {
  return string().bytes;
}

const std::vector<Value>& Value::items() const {
  return sequence().items;
}

std::string_view type_name(const Value& value) {
  // In the order of Kind.
  static constexpr std::string_view kNames[] = {"Undefined", "Undefined", "NoneType",   "bool",      "int",
                                                "float",     "str",       "list",       "tuple",     "dict",
                                                "range",     "",          "generator",  "Namespace", "Macro",
                                                "function",  "method",    "LoopContext"};
  static_assert(std::size(kNames) == static_cast<size_t>(Kind::loop) + 1);
  if (!value.is(Kind::view)) return kNames[static_cast<size_t>(value.kind())];
  return value.view().of == View::Of::keys     ? "dict_keys"
         : value.view().of == View::Of::values ? "dict_values"
                                               : "dict_items";
}

int depth_of(const Value& value) {
  switch (value.kind()) {
    case Kind::list:
    case Kind::tuple:
      return value.sequence().depth;
    case Kind::dict:
      return value.dict().depth;
    case Kind::view:
      return value.view().dict->depth + 1;
    case Kind::generator:
      return value.generator().depth;
    case Kind::method:
      return depth_of(value.method().self) + 1;
    default:
      return 0;
  }
}

}  // namespace stepforge::jinja
