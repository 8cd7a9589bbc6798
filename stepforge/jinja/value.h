// SPDX-License-Identifier: Apache-2.0
// The values of a template: the Python values that a sandboxed template can make. All but generators are immutable.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace stepforge::jinja {

class Interpreter;
struct Namespace;
struct Macro;
struct Loop;
struct Method;
struct Global;

enum class Kind : uint8_t {
  missing,  // a variable without a value; never the result of an expression
  undefined,
  none,
  boolean,
  integer,
  floating,
  string,
  list,
  tuple,
  dict,
  range,
  view,  // dict.keys(), values(), items()
  generator,
  name_space,
  macro,
  function,  // a global function
  method,    // of a value, such as "a".upper
  loop,
};

struct Text;
struct Sequence;
struct Dict;
struct Range;
struct View;
struct Generator;
struct UndefinedInfo;
struct BoundMethod;

class Value {
 public:
  Value() = default;
  static Value none() { return Value(Kind::none); }
  static Value boolean(bool value) { return Value(Kind::boolean, value ? 1 : 0); }
  static Value integer(int64_t value) { return Value(Kind::integer, value); }
  static Value floating(double value) { return Value(value); }
  template <typename T>
  static Value object(Kind kind, std::shared_ptr<T> object) {
    Value value(kind);
    value.object_ = std::move(object);
    return value;
  }
  /// A value that the interpreter keeps until the end of the render.
  static Value pointer(Kind kind, const void* pointer) { return Value(kind, pointer); }

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  /// bool counts, as in Python.
  bool is_integral() const { return kind_ == Kind::integer || kind_ == Kind::boolean; }
  bool is_number() const { return is_integral() || kind_ == Kind::floating; }
  bool is_sequence() const { return kind_ == Kind::list || kind_ == Kind::tuple; }

  /// The accessors require the kind.
  bool boolean() const { return integer_ != 0; }
  int64_t integer() const { return integer_; }  ///< also of a boolean
  double floating() const { return floating_; }
  const std::string& text() const;
  const Text& string() const { return *static_cast<const Text*>(object_.get()); }
  const Sequence& sequence() const { return *static_cast<const Sequence*>(object_.get()); }
  const std::vector<Value>& items() const;
  const Dict& dict() const { return *static_cast<const Dict*>(object_.get()); }
  const Range& range() const { return *static_cast<const Range*>(object_.get()); }
  const View& view() const { return *static_cast<const View*>(object_.get()); }
  Generator& generator() const { return *static_cast<Generator*>(object_.get()); }
  const UndefinedInfo& undefined() const { return *static_cast<const UndefinedInfo*>(object_.get()); }
  const BoundMethod& method() const { return *static_cast<const BoundMethod*>(object_.get()); }
  template <typename T>
  T& kept() const {
    return *static_cast<T*>(const_cast<void*>(pointer_));
  }
  const void* identity() const { return object_ ? object_.get() : pointer_; }
  std::shared_ptr<const Dict> shared_dict() const { return std::static_pointer_cast<const Dict>(object_); }

 private:
  explicit Value(Kind kind) : kind_(kind) {}
  Value(Kind kind, int64_t integer) : kind_(kind), integer_(integer) {}
  Value(Kind kind, const void* pointer) : kind_(kind), pointer_(pointer) {}
  explicit Value(double floating) : kind_(Kind::floating), floating_(floating) {}

  Kind kind_ = Kind::missing;
  union {
    int64_t integer_ = 0;
    double floating_;
    const void* pointer_;
  };
  std::shared_ptr<void> object_;
};

/// A string: UTF-8, with its length in code points.
struct Text {
  std::string bytes;
  int64_t length;
  bool safe;  // from `safe` or `escape` (markup.h)
  bool ascii() const { return length == static_cast<int64_t>(bytes.size()); }
};

struct Sequence {
  std::vector<Value> items;
  int depth;  // of nesting
};

struct Dict {
  std::vector<std::pair<Value, Value>> items;     // in order of insertion
  std::unordered_multimap<size_t, size_t> index;  // from hash to position, only of large ones
  int depth;
};

struct Range {
  int64_t start;
  int64_t stop;
  int64_t step;
  int64_t length;
};

struct View {
  enum class Of { keys, values, items } of;
  std::shared_ptr<const Dict> dict;
};

/// Sets its argument to the next value, or returns false at the end.
using Next = std::function<bool(Value&)>;

struct Generator {
  Next next;
  int depth;
};

struct UndefinedInfo {
  std::string message;  // the error when it is used
};

struct BoundMethod {
  Value self;
  const Method* method = nullptr;
};

/// The arguments of a call, a filter or a test.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

/// A function of a value: a method, filter or test.
using ValueFunction = Value (*)(Interpreter& interpreter, const Value& subject, Arguments& arguments);

/// "str", "int", ...: as Python names the type.
std::string_view type_name(const Value& value);

/// How deeply containers are nested in the value; 0 if it is none.
int depth_of(const Value& value);

}  // namespace stepforge::jinja
