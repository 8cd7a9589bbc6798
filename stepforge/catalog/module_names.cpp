// SPDX-License-Identifier: Apache-2.0
#include "stepforge/catalog/module_names.h"

#include <algorithm>
#include <set>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

namespace {

/// The last parts of names, each once: "q_proj".
std::string last_parts(const std::vector<std::string>& modules) {
  std::set<std::string> parts;
  for (const std::string& module : modules) parts.insert(module.substr(module.rfind('.') + 1));
  return join(std::vector<std::string>(parts.begin(), parts.end()), ", ");
}

}  // namespace

std::string_view module_of(std::string_view tensor) {
  return tensor.substr(0, tensor.rfind('.'));
}

ModuleNames::ModuleNames(std::string option, const std::vector<std::string>& texts)
    : option_(std::move(option)) {
  for (const std::string& text : texts) {
    try {
      names_.push_back({text, NamePattern("^(?:" + text + ")$")});
    } catch (const FormatError& fault) {
      throw UsageError(format("{}: \"{}\" is {}", option_, text, fault.what()));
    }
  }
}

int ModuleNames::find(std::string_view module) {
  int first = -1;
  for (size_t i = 0; i < names_.size(); ++i) {
    Name& name = names_[i];
    const bool is_end = module.ends_with(name.text) && (module.size() == name.text.size() ||
                                                        module[module.size() - name.text.size() - 1] == '.');
    if (!is_end && !name.whole.matches(module)) continue;
    name.found = true;
    if (first < 0) first = static_cast<int>(i);
  }
  return first;
}

void ModuleNames::require_found(const std::vector<std::string>& modules) const {
  const auto missing = std::ranges::find(names_, false, &Name::found);
  if (missing == names_.end()) return;
  throw UsageError(format("{}: \"{}\" matches none of the modules that it may name; these end with {}, as {}",
                          option_, missing->text, last_parts(modules), modules.front()));
}

}  // namespace stepforge
