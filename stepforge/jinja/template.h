// SPDX-License-Identifier: Apache-2.0
// The Jinja of Hugging Face chat templates: renders what Jinja2 renders in the environment of transformers'
// render_jinja_template (immutable sandbox, trim_blocks, lstrip_blocks, loop controls, generation blocks).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "stepforge/base/error.h"
#include "stepforge/base/json.h"

namespace stepforge::jinja {

/// A template is malformed, or its evaluation failed. The text names the template, the line, the fault and the remedy.
class TemplateError : public Error {
 public:
  enum class Reason {
    syntax,       ///< the source is not a template
    evaluation,   ///< an operation failed, as it does in Jinja2
    limit,        ///< a limit of RenderOptions, or a number that needs more than 64 bits
    unsupported,  ///< Jinja2 has it, this interpreter does not
    refusal,      ///< raise_exception, see TemplateRefusal
  };
  TemplateError(Reason reason, int line, const std::string& text)
      : Error(text), reason_(reason), line_(line) {}
  Reason reason() const { return reason_; }
  /// Counted from 1.
  int line() const { return line_; }

 private:
  Reason reason_;
  int line_;
};

/// The template called raise_exception: it refuses these messages.
class TemplateRefusal : public TemplateError {
 public:
  TemplateRefusal(std::string message, int line, const std::string& text)
      : TemplateError(Reason::refusal, line, text), message_(std::move(message)) {}
  /// The argument of raise_exception.
  const std::string& message() const { return message_; }

 private:
  std::string message_;
};

/// Limits for templates from outside, and the clock. A render may take the free steps and memory, more for each byte of
/// its variables, and never more than the maxima. So the time for a data set is in proportion to its records and bytes.
struct RenderOptions {
  /// Steps: expressions and statements evaluated, larger values count more.
  int64_t free_steps = 100'000;
  int64_t steps_per_byte = 30;
  int64_t max_steps = 20'000'000;
  /// Memory: of all values made while rendering, counted when they are made and not given back.
  int64_t free_memory_bytes = int64_t{16} << 20;
  int64_t memory_per_byte = 64;
  int64_t max_memory_bytes = int64_t{512} << 20;
  int64_t max_output_bytes = int64_t{64} << 20;  ///< of the rendered text
  int max_depth = 600;                           ///< nested evaluation: expressions, blocks, macros
  /// What strftime_now shows, in seconds since 1970 UTC, as UTC. Absent: the current local time.
  std::optional<int64_t> now;
};

/// Bytes [begin, end) of the rendered text.
struct Span {
  int64_t begin = 0;
  int64_t end = 0;
  bool operator==(const Span&) const = default;
};

struct Rendered {
  std::string text;
  /// The generation blocks in the order in which they ended. As in transformers, the begin is the length of the finished
  /// text when the block ends, so a block inside a macro, a set block or another generation block lies too early;
  /// a span that reaches beyond the text is cut.
  std::vector<Span> generation;
};

struct Program;

/// A parsed template. Immutable: several threads may render it.
class Template {
 public:
  /// `name` stands for the template in errors. Throws TemplateError (syntax, limit, unsupported); FormatError if
  /// `source` is not UTF-8.
  static Template parse(const std::string& source, std::string name);

  /// Renders with the members of `variables`, an object. Throws TemplateError, or TemplateRefusal if the template calls
  /// raise_exception.
  Rendered render(const Json& variables, const RenderOptions& options = {}) const;

 private:
  explicit Template(std::shared_ptr<const Program> program) : program_(std::move(program)) {}
  std::shared_ptr<const Program> program_;
};

}  // namespace stepforge::jinja
