// SPDX-License-Identifier: Apache-2.0
#include "stepforge/jinja/budget.h"

#include <algorithm>

#include "stepforge/base/format.h"

namespace stepforge::jinja {

void fail(std::string message, std::string remedy) {
  throw Fault{TemplateError::Reason::evaluation, std::move(message), std::move(remedy)};
}

void fail_limit(std::string message, std::string remedy) {
  throw Fault{TemplateError::Reason::limit, std::move(message), std::move(remedy)};
}

void fail_unsupported(std::string message, std::string remedy) {
  throw Fault{TemplateError::Reason::unsupported, std::move(message), std::move(remedy)};
}

Budget::Budget(const RenderOptions& options)
    : options_(options),
      max_steps_(options.max_steps),
      max_memory_(options.max_memory_bytes),
      steps_(max_steps_),
      memory_(max_memory_) {}

void Budget::begin_render() {
  variable_bytes_ = max_memory_ - memory_;
  max_steps_ = std::min(options_.max_steps, options_.free_steps + options_.steps_per_byte * variable_bytes_);
  max_memory_ = std::min(options_.max_memory_bytes,
                         options_.free_memory_bytes + options_.memory_per_byte * variable_bytes_);
  steps_ = max_steps_;
  memory_ = max_memory_ - variable_bytes_;
}

void Budget::allocate(size_t bytes) {
  step(static_cast<int64_t>(bytes / 64));
  memory_ -= static_cast<int64_t>(bytes);
  if (memory_ < 0) {
    fail_limit(format("the values need more than {}, the limit for variables of {}", human_bytes(max_memory_),
                      human_bytes(variable_bytes_)),
               "let the template build less");
  }
}

void Budget::check_output(size_t bytes) const {
  if (static_cast<int64_t>(bytes) > options_.max_output_bytes) {
    fail_limit(format("the text is larger than {}", human_bytes(options_.max_output_bytes)),
               "render fewer messages, or raise max_output_bytes");
  }
}

void Budget::out_of_steps() const {
  fail_limit(format("more than {} steps, the limit for variables of {}", with_thousands(max_steps_),
                    human_bytes(variable_bytes_)),
             "let the template do less");
}

void Budget::too_deep() {
  --depth_;  // the destructor does not run after a throwing constructor
  fail_limit(format("more than {} levels of nested evaluation", options_.max_depth),
             "look for a macro that calls itself without end, or raise max_depth");
}

}  // namespace stepforge::jinja
