// SPDX-License-Identifier: Apache-2.0
// Configurations of other trainers as ours: torchtitan's TOML, Hugging Face TrainingArguments as JSON, and
// LLaMA-Factory's YAML.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace stepforge {

struct ConvertedConfig {
  std::string toml;               ///< the fields that were found, in the order of our schema
  std::vector<std::string> lost;  ///< "compile.enable = true: not needed: ...", one line each
};

/// `name` decides by its ending: .json, .yaml or .yml, else TOML. Throws FormatError if the text is not that.
ConvertedConfig convert_config(std::string_view text, const std::string& name);

}  // namespace stepforge
