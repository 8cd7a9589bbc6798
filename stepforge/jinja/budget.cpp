// SPDX-License-Identifier: Apache-2.0
#include "stepforge/jinja/budget.h"

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
    : options_(options), steps_(options.max_steps), memory_(options.max_memory_bytes) {}

void Budget::allocate(size_t bytes) {
  step(static_cast<int64_t>(bytes / 64));
  memory_ -= static_cast<int64_t>(bytes);
  if (memory_ < 0) {
    fail_limit(format("the values need more than {}", human_bytes(options_.max_memory_bytes)),
               "let the template build less, or raise max_memory_bytes");
  }
}

void Budget::check_output(size_t bytes) const {
  if (static_cast<int64_t>(bytes) > options_.max_output_bytes) {
    fail_limit(format("the text is larger than {}", human_bytes(options_.max_output_bytes)),
               "render fewer messages, or raise max_output_bytes");
  }
}

void Budget::out_of_steps() const {
  fail_limit(format("more than {} steps", with_thousands(options_.max_steps)),
             "let the template do less, or raise max_steps");
}

void Budget::too_deep() {
  --depth_;  // a constructor that throws has no destructor
  fail_limit(format("more than {} levels of nested evaluation", options_.max_depth),
             "look for a macro that calls itself without end, or raise max_depth");
}

}  // namespace stepforge::jinja
