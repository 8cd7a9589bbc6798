// SPDX-License-Identifier: Apache-2.0
// Translates configurations of other trainers: torchtitan's TOML, Hugging Face TrainingArguments as JSON, and
// LLaMA-Factory's YAML.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace stepforge {

struct ConvertedConfig {
  std::string toml;               ///< the translated fields, in the order of our schema
  std::vector<std::string> lost;  ///< "compile.enable = true: not needed: ...", one line each
};

/// The extension of `name` gives the format: .json, .yaml or .yml, else TOML. Throws FormatError if `text` is
/// malformed.
ConvertedConfig convert_config(std::string_view text, const std::string& name);

}  // namespace stepforge
