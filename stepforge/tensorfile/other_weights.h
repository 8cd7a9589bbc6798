// SPDX-License-Identifier: Apache-2.0
// Weights that are not read: what a folder or file holds instead of safetensors of a whole model, and the remedy.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace stepforge {

/// Of a folder without weights that can be read, or a file: what it is, and what to do. "" if nothing is known.
/// The text is a clause that continues "FOLDER ...".
std::string other_weights_in(const std::filesystem::path& path);

/// What tensors of these names are if they are no weights of a model: of an adapter, or quantized. "" otherwise.
std::string other_weights_named(const std::vector<std::string>& names);

}  // namespace stepforge
