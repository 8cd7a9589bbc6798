// SPDX-License-Identifier: Apache-2.0
// Renders a template in one call.
#pragma once

#include <string>

#include "stepforge/jinja/template.h"

namespace stepforge::testing {

inline std::string rendered(const std::string& source, const Json& variables = Json::object(),
                            const jinja::RenderOptions& options = {}) {
  return jinja::Template::parse(source, "test.jinja").render(variables, options).text;
}

/// The error that parsing or rendering must give; a text if there is none.
inline jinja::TemplateError::Reason reason_of(const std::string& source,
                                              const Json& variables = Json::object(),
                                              const jinja::RenderOptions& options = {}) {
  try {
    rendered(source, variables, options);
  } catch (const jinja::TemplateError& error) {
    return error.reason();
  }
  throw std::runtime_error("no error: " + source);
}

}  // namespace stepforge::testing
