// SPDX-License-Identifier: Apache-2.0
// Calls: macros, methods and global functions.
#include <algorithm>

#include "stepforge/base/format.h"
#include "stepforge/jinja/interpreter.h"
#include "stepforge/jinja/markup.h"
#include "stepforge/jinja/methods.h"
#include "stepforge/jinja/operations.h"
#include "stepforge/jinja/scoped_state.h"

namespace stepforge::jinja {

Value Interpreter::call(const Value& callee, Arguments& arguments) {
  const Budget::Level level(heap_.budget());
  switch (callee.kind()) {
    case Kind::macro:
      return call_macro(callee.kept<Macro>(), arguments);
    case Kind::method: {
      const BoundMethod& method = callee.method();
      if (!is_safe(method.self)) return method.method->function(*this, method.self, arguments);
      const std::string_view name = method.method->name;
      if (name == "format" || name == "join" || name == "replace")
        fail_unsupported(format("the method {} of a safe string", name), "apply `safe` last");
      return made_safe(heap_, method.method->function(*this, method.self, arguments));
    }
    case Kind::function:
      return call_global(*this, callee, arguments);
    case Kind::undefined:
      fail_undefined(callee);
    default:
      fail(format("{} cannot be called", type_name(callee)), "call a macro, a method or a function");
  }
}

Value Interpreter::call_macro(const Macro& macro, Arguments& arguments) {
  const Budget::Level level(heap_.budget());
  const int line = line_;
  const Entered entered(*this, macro.body->function, macro.closure);
  enter(macro.body->scope);
  bind_parameters(macro, arguments);
  Buffer buffer(*this);
  execute(macro.body->body);
  line_ = line;
  return heap_.text(std::move(buffer.text));
}

namespace {

/// Removes and returns a named argument; missing if there is none.
Value take_named(Arguments& arguments, std::string_view name) {
  const auto found = std::find_if(arguments.named.begin(), arguments.named.end(),
                                  [&](const auto& entry) { return entry.first == name; });
  if (found == arguments.named.end()) return {};
  Value value = std::move(found->second);
  arguments.named.erase(found);
  return value;
}

}  // namespace

void Interpreter::bind_parameters(const Macro& macro, Arguments& arguments) {
  const MacroBody& body = *macro.body;
  const size_t count = body.parameters.size();
  const size_t given = std::min(arguments.positional.size(), count);
  for (size_t i = 0; i < count; ++i) {
    const Expression& parameter = *body.parameters[i];
    if (i < given) {
      slot(parameter.slot) = arguments.positional[i];
    } else {
      slot(parameter.slot) = take_named(arguments, parameter.name);
    }
  }
  if (body.caller >= 0) {
    Value caller = take_named(arguments, "caller");
    if (caller.is(Kind::missing) || caller.is(Kind::none))
      caller = heap_.undefined("there is no caller: use {% call %}");
    frame_->slots[static_cast<size_t>(body.caller)] = std::move(caller);
  }
  const std::string name = body.name.empty() ? "caller" : body.name;
  if (!arguments.named.empty()) {
    fail(format("the macro {} has no parameter {}", name, arguments.named[0].first),
         "pass only its parameters");
  }
  if (arguments.positional.size() > count) {
    fail(format("the macro {} takes {} arguments, not {}", name, count, arguments.positional.size()),
         "pass fewer");
  }
  for (size_t i = 0; i < count; ++i) {
    const Expression& parameter = *body.parameters[i];
    if (!slot(parameter.slot).is(Kind::missing)) continue;
    const size_t without_default = count - body.defaults.size();
    Value value = i < without_default
                      ? heap_.undefined(format("the parameter {} was not passed", parameter.name))
                      : evaluate(*body.defaults[i - without_default]);
    slot(parameter.slot) = std::move(value);
  }
}

std::vector<const Value*> bind(std::string_view function, const Arguments& arguments,
                               std::initializer_list<std::string_view> parameters, size_t required) {
  std::vector<const Value*> result(parameters.size(), nullptr);
  if (arguments.positional.size() > parameters.size()) {
    fail(format("{} takes at most {} arguments, not {}", function, parameters.size(),
                arguments.positional.size()),
         "pass fewer");
  }
  for (size_t i = 0; i < arguments.positional.size(); ++i) result[i] = &arguments.positional[i];
  for (const auto& [name, value] : arguments.named) {
    const auto found = std::find(parameters.begin(), parameters.end(), name);
    if (name.empty() || found == parameters.end())
      fail(format("{} has no parameter {}", function, name), "pass only its parameters");
    const Value*& place = result[static_cast<size_t>(found - parameters.begin())];
    if (place != nullptr) fail(format("{} gets the argument {} twice", function, name), "pass it once");
    place = &value;
  }
  for (size_t i = 0; i < required; ++i) {
    if (result[i] == nullptr) fail(format("{} needs {} arguments", function, required), "pass them");
  }
  return result;
}

}  // namespace stepforge::jinja
