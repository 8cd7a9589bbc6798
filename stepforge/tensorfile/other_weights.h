// SPDX-License-Identifier: Apache-2.0
// Weights that we do not read: what a folder or file holds instead of a whole model in safetensors, and the remedy.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace stepforge {

/// Says what a file, or a folder without weights that we read, holds, and what to do. "" if nothing is known.
/// The text is a clause that continues "FOLDER ...".
std::string other_weights_in(const std::filesystem::path& path);

/// Says what tensors of these names are if they are not a model's weights: an adapter's, or quantized. "" otherwise.
std::string other_weights_named(const std::vector<std::string>& names);

}  // namespace stepforge
