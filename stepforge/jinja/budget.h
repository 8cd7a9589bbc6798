// SPDX-License-Identifier: Apache-2.0
// Evaluation errors, and the limits on time, memory and stack.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "stepforge/jinja/template.h"

namespace stepforge::jinja {

/// An error without its place: Template adds name and line. Internal to this folder.
struct Fault {
  TemplateError::Reason reason;
  std::string message;
  std::string remedy;
};

[[noreturn]] void fail(std::string message, std::string remedy = "correct the template");
[[noreturn]] void fail_limit(std::string message, std::string remedy);
[[noreturn]] void fail_unsupported(std::string message, std::string remedy);

/// The limits of one render. Time is counted in steps: one for each expression or statement, and one for each 64 bytes or
/// 4 values that an operation reads or writes.
class Budget {
 public:
  /// Starts with the maxima, which hold while the variables are converted.
  explicit Budget(const RenderOptions& options);
  /// Sets the limits of the render from the memory that the variables took.
  void begin_render();

  void step(int64_t count = 1) {
    steps_ -= count;
    if (steps_ < 0) out_of_steps();
  }
  void read_bytes(size_t bytes) { step(static_cast<int64_t>(bytes / 64)); }
  /// Memory is counted when it is allocated and never given back, an upper bound of what is live.
  void allocate(size_t bytes);
  void check_output(size_t bytes) const;

  /// RAII: one level of nested evaluation.
  class Level {
   public:
    explicit Level(Budget& budget) : budget_(budget) {
      if (++budget_.depth_ > budget_.options_.max_depth) budget_.too_deep();
    }
    ~Level() { --budget_.depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    Budget& budget_;
  };

 private:
  [[noreturn]] void out_of_steps() const;
  [[noreturn]] void too_deep();

  RenderOptions options_;
  int64_t variable_bytes_ = 0;
  int64_t max_steps_;
  int64_t max_memory_;
  int64_t steps_;
  int64_t memory_;
  int depth_ = 0;
};

}  // namespace stepforge::jinja
