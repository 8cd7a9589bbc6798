// SPDX-License-Identifier: Apache-2.0
// The files of a model folder that belong to its tokenizer and are copied along from folder to run to export.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "stepforge/text/model_tokens.h"

namespace stepforge {

/// The tokenizer files of `folder` with their contents, by their path in it: tokenizers of all kinds, their settings, chat
/// templates, and the settings of processors. Throws Error if one cannot be read or has more than 128 MiB.
TokenizerFiles read_tokenizer_files(const std::filesystem::path& folder);

/// Writes them, and the folders they need. Throws Error.
void write_tokenizer_files(const TokenizerFiles& files, const std::filesystem::path& folder);

/// The names of the other files of a model folder, sorted, without weights, config.json and generation_config.json, which
/// are written anew, and hidden files: model card, licence, code and the like. Folders end in "/".
std::vector<std::string> files_left_behind(const std::filesystem::path& folder);

}  // namespace stepforge
