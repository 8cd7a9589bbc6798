// SPDX-License-Identifier: Apache-2.0
// Choosing modules of a model by the names that Hugging Face models give them, as PEFT does.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "stepforge/config/name_pattern.h"

namespace stepforge {

/// "model.layers.0.self_attn.q_proj" of "model.layers.0.self_attn.q_proj.weight".
std::string_view module_of(std::string_view tensor);

/// Names of modules, and which of them have been found.
class ModuleNames {
 public:
  /// A text is a module's whole name, its last parts ("q_proj", "mlp.down_proj"), or a regular expression of the whole name.
  /// `option` is the configuration field with the texts. Throws UsageError if one is no regular expression.
  ModuleNames(std::string option, const std::vector<std::string>& texts);

  /// The index of the first text that matches, or -1. All are tried, so that each that matches counts as found.
  int find(std::string_view module);
  /// Throws UsageError naming the first text that has matched nothing, with some of `modules`.
  void require_found(const std::vector<std::string>& modules) const;

 private:
  struct Name {
    std::string text;
    NamePattern whole;
    bool found = false;
  };

  std::string option_;
  std::vector<Name> names_;
};

}  // namespace stepforge
