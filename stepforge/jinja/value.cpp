// SPDX-License-Identifier: Apache-2.0
#include "stepforge/jinja/value.h"

namespace stepforge::jinja {

Value Value::boolean(bool value) {
  Value result(Kind::boolean);
  result.integer_ = value ? 1 : 0;
  return result;
}

Value Value::integer(int64_t value) {
  Value result(Kind::integer);
  result.integer_ = value;
  return result;
}

Value Value::floating(double value) {
  Value result(Kind::floating);
  result.floating_ = value;
  return result;
}

Value Value::pointer(Kind kind, const void* pointer) {
  Value result(kind);
  result.pointer_ = pointer;
  return result;
}

const std::string& Value::text() const {
  return string().bytes;
}

const std::vector<Value>& Value::items() const {
  return sequence().items;
}

std::string_view type_name(const Value& value) {
  switch (value.kind()) {
    case Kind::missing:
    case Kind::undefined:
      return "Undefined";
    case Kind::none:
      return "NoneType";
    case Kind::boolean:
      return "bool";
    case Kind::integer:
      return "int";
    case Kind::floating:
      return "float";
    case Kind::string:
      return "str";
    case Kind::list:
      return "list";
    case Kind::tuple:
      return "tuple";
    case Kind::dict:
      return "dict";
    case Kind::range:
      return "range";
    case Kind::view:
      return value.view().of == View::Of::keys     ? "dict_keys"
             : value.view().of == View::Of::values ? "dict_values"
                                                   : "dict_items";
    case Kind::generator:
      return "generator";
    case Kind::name_space:
      return "Namespace";
    case Kind::macro:
      return "Macro";
    case Kind::function:
      return "function";
    case Kind::method:
      return "method";
    case Kind::loop:
      return "LoopContext";
    case Kind::cycler:
      return "Cycler";
    case Kind::joiner:
      return "Joiner";
  }
  return "object";
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
