// SPDX-License-Identifier: Apache-2.0
// The global functions.
#include <algorithm>
#include <chrono>
#include <ctime>

#include "stepforge/base/format.h"
#include "stepforge/base/utf8.h"
#include "stepforge/jinja/formatting.h"
#include "stepforge/jinja/interpreter.h"
#include "stepforge/jinja/methods.h"
#include "stepforge/jinja/operations.h"

namespace stepforge::jinja {

struct Global {
  std::string_view name;
  Value (*function)(Interpreter& interpreter, Arguments& arguments);  // null: calling it is refused
};

namespace {
namespace global {

Value range(Interpreter& interpreter, Arguments& arguments) {
  const auto values = bind("range()", arguments, {"", "", ""}, 1);
  const auto integer = [](const Value* value) { return integer_argument("range()", *value); };
  const int64_t first = integer(values[0]);
  if (values[1] == nullptr) return interpreter.heap().range(0, first, 1);
  const int64_t step = values[2] == nullptr ? 1 : integer(values[2]);
  if (step == 0) fail("the step of range() is zero", "use another step");
  return interpreter.heap().range(first, integer(values[1]), step);
}

/// The items of dict(...): those of a dict or of pairs, then the named arguments.
std::vector<std::pair<Value, Value>> members(Interpreter& interpreter, std::string_view function,
                                             const Arguments& arguments) {
  Heap& heap = interpreter.heap();
  std::vector<std::pair<Value, Value>> items;
  if (arguments.positional.size() > 1)
    fail(format("{} takes at most one value without a name", function), "pass fewer");
  if (!arguments.positional.empty()) {
    const Value& source = arguments.positional[0];
    const Next next = iterate(heap, source.is(Kind::dict) ? heap.view(View::Of::items, source) : source);
    for (Value item; next(item);) {
      heap.budget().step();
      std::vector<Value> pair = all_of(heap, item);
      if (pair.size() != 2) fail(format("{} needs pairs", function), "pass a dict or a list of pairs");
      items.emplace_back(std::move(pair[0]), std::move(pair[1]));
    }
  }
  for (const auto& [name, value] : arguments.named) items.emplace_back(heap.text(name), value);
  return items;
}

Value dict(Interpreter& interpreter, Arguments& arguments) {
  return interpreter.heap().dict(members(interpreter, "dict()", arguments));
}

Value name_space(Interpreter& interpreter, Arguments& arguments) {
  Heap& heap = interpreter.heap();
  auto& result = heap.keep(Namespace{});
  const Value attributes = heap.dict(members(interpreter, "namespace()", arguments));
  for (const auto& [key, value] : attributes.dict().items) {
    if (!key.is(Kind::string))
      fail_unsupported("a namespace with an attribute that is not a string", "use strings");
    result.set(heap, key.text(), value);
  }
  return Value::pointer(Kind::name_space, &result);
}

Value raise_exception(Interpreter& interpreter, Arguments& arguments) {
  const auto values = bind("raise_exception()", arguments, {"message"}, 1);
  throw Fault{TemplateError::Reason::refusal, printable_line(str(interpreter.heap(), *values[0])), ""};
}

/// Replaces what Python handles itself: %f (microseconds), and %z and %Z, which are empty for a time without a zone.
std::string system_pattern(const std::string& pattern, int64_t microseconds) {
  std::string result;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '%' || i + 1 == pattern.size()) {
      result += pattern[i];
      continue;
    }
    const char letter = pattern[++i];
    if (letter == 'f')
      result += format("{:06}", microseconds);
    else if (letter != 'z' && letter != 'Z')
      (result += '%') += letter;
  }
  return result;
}

Value strftime_now(Interpreter& interpreter, Arguments& arguments) {
  const auto values = bind("strftime_now()", arguments, {"format"}, 1);
  const std::string& pattern = text_argument("strftime_now()", *values[0]);
  if (pattern.size() > 1000) fail_limit("strftime_now() with more than 1,000 bytes", "use a shorter format");
  if (pattern.find('\0') != std::string::npos) fail("strftime_now() with a null character");
  const auto since_1970 = std::chrono::system_clock::now().time_since_epoch();
  const int64_t microseconds = std::chrono::duration_cast<std::chrono::microseconds>(since_1970).count();
  const std::optional<int64_t>& fixed = interpreter.options().now;
  const std::time_t seconds = fixed ? *fixed : microseconds / 1'000'000;
  std::tm parts{};
  if ((fixed ? gmtime_r(&seconds, &parts) : localtime_r(&seconds, &parts)) == nullptr) {
    fail(format("the time {} has no date", seconds), "pass another time");
  }
  // A mark, because strftime returns 0 both for an empty result and for a buffer that is too small.
  const std::string marked = system_pattern(pattern, fixed ? 0 : microseconds % 1'000'000) + "|";
  std::string buffer(marked.size() * 64 + 64, '\0');
  buffer.resize(std::strftime(buffer.data(), buffer.size(), marked.c_str(), &parts));
  if (buffer.empty()) fail_limit("strftime_now() makes too long a text", "use a shorter format");
  buffer.pop_back();
  return interpreter.heap().text(std::move(buffer));
}

constexpr Global kGlobals[] = {{"cycler", nullptr},       {"dict", dict},
                               {"joiner", nullptr},       {"lipsum", nullptr},
                               {"namespace", name_space}, {"raise_exception", raise_exception},
                               {"range", range},          {"strftime_now", strftime_now}};

}  // namespace global
}  // namespace

Value global_function(std::string_view name) {
  const auto found = std::find_if(std::begin(global::kGlobals), std::end(global::kGlobals),
                                  [name](const Global& global) { return global.name == name; });
  return found == std::end(global::kGlobals) ? Value() : Value::pointer(Kind::function, found);
}

Value call_global(Interpreter& interpreter, const Value& function, Arguments& arguments) {
  const auto& global = function.kept<const Global>();
  if (global.function == nullptr)
    fail_unsupported(format("the function {}()", global.name), "write the text, or use `loop`");
  return global.function(interpreter, arguments);
}

}  // namespace stepforge::jinja
