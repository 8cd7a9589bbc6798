// SPDX-License-Identifier: Apache-2.0
// Evaluates a template once.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/jinja/heap.h"
#include "stepforge/jinja/runtime.h"
#include "stepforge/jinja/template.h"
#include "stepforge/jinja/tree.h"

namespace stepforge::jinja {

class Interpreter {
 public:
  Interpreter(const Program& program, const RenderOptions& options);

  Rendered run(const Json& variables);
  /// The line of the expression or statement being evaluated, for errors.
  int line() const { return line_; }

  // For filters, tests, methods and global functions.
  Heap& heap() { return heap_; }
  const RenderOptions& options() const { return options_; }
  Value call(const Value& callee, Arguments& arguments);

 private:
  enum class Flow { normal, break_loop, continue_loop };
  using FramePtr = std::shared_ptr<Frame>;

  /// RAII: redirects output to its own text.
  class Buffer;
  /// RAII: makes a new frame the current one.
  class Entered;

  // statements.cpp
  Flow execute(const Body& body);
  Flow execute(const Statement& statement);
  void output(const Statement& statement);
  Flow conditional(const Statement& statement);
  Flow loop(const ForLoop& node);
  Value tested(const ForLoop& node, const Value& iterable);
  void set(const Statement& statement);
  Flow set_block(const Statement& statement);
  Flow filter_block(const Statement& statement);
  void define_macro(const Statement& statement);
  void call_block(const Statement& statement);
  void generation(const Statement& statement);
  void assign(const Expression& target, const Value& value);
  void check_namespaces(const Expression& target);
  void write(std::string_view text);
  void write(const Value& value);
  /// Writes the result of a block, which must be a string.
  void write_text(const Value& value, std::string_view block);
  void enter(const Scope& scope);
  Value variable(const std::string& name);

  // expressions.cpp
  Value evaluate(const Expression& expression);
  Value evaluate_name(const Expression& expression);
  std::vector<Value> evaluate_all(const std::vector<ExpressionPtr>& expressions);
  Value evaluate_dict(const Expression& expression);
  Value evaluate_compare(const Expression& expression);
  Value evaluate_concat(const Expression& expression);
  Value evaluate_conditional(const Expression& expression);
  Value evaluate_slice(const Expression& expression);
  Value evaluate_call(const Expression& expression, const Value* caller);
  Value evaluate_filter(const Expression& expression, const Value* subject);
  Value evaluate_test(const Expression& expression);
  Arguments evaluate_arguments(const CallArguments& arguments);
  Value& slot(const Slot& slot);

  // calls.cpp
  Value call_macro(const Macro& macro, Arguments& arguments);
  void bind_parameters(const Macro& macro, Arguments& arguments);

  const Program& program_;
  const RenderOptions& options_;
  Heap heap_;
  std::map<std::string, Value, std::less<>> variables_;
  FramePtr frame_;
  std::string root_;
  std::string* out_ = &root_;
  int64_t root_length_ = 0;       // code points of root_ ...
  size_t root_counted_ = 0;       // ... up to this byte
  std::vector<Span> generation_;  // in code points
  int line_ = 1;
};

/// A function that templates may call by name, or a missing value.
Value global_function(std::string_view name);
Value call_global(Interpreter& interpreter, const Value& function, Arguments& arguments);

/// The arguments of a function in the order of its parameters; null: not given. A parameter named "" cannot be passed by
/// name. Throws Fault if one of the first `required` is missing, or if there are others.
std::vector<const Value*> bind(std::string_view function, const Arguments& arguments,
                               std::initializer_list<std::string_view> parameters, size_t required);

}  // namespace stepforge::jinja
