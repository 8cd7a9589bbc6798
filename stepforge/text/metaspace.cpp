// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/metaspace.h"

#include "stepforge/text/text_pattern.h"

namespace stepforge {

Metaspace::Metaspace(const JsonReader& component) {
  component.only_keys({"type", "replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep"});
  replacement = read_character(component["replacement"]);
  const std::string scheme = component.text_or("prepend_scheme", "always");
  if (scheme == "never") {
    prepend = Prepend::never;
  } else if (scheme == "first") {
    prepend = Prepend::first;
  } else if (scheme != "always") {
    component["prepend_scheme"].refuse("only always, first and never are supported");
  }
  if (prepend != Prepend::never && !component.boolean_or("add_prefix_space", true))
    component["add_prefix_space"].refuse(R"(false needs the prepend_scheme "never")");
  split = component.boolean_or("split", true);
}

}  // namespace stepforge
