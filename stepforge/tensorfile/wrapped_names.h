// SPDX-License-Identifier: Apache-2.0
// Names of tensors that a wrapper around the model has changed: torch.compile, DistributedDataParallel, peft, Lightning.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace stepforge {

/// The names of a file's tensors as transformers writes them.
struct WrappedNames {
  std::vector<std::string> names;  ///< one for each given name
  std::string what;                ///< "the prefix \"_orig_mod.\" is left out of the names of tensors"
};

/// Removes from the names what wrappers added. The name of the embedding, "model.embed_tokens.weight" in transformers' files
/// of every family here, shows the prefix, which all names must share; a missing "model." is added. nullopt if the names are
/// right already, or if the answer is not certain (they are then reported as missing and unexpected).
std::optional<WrappedNames> without_wrappers(const std::vector<std::string>& names);

}  // namespace stepforge
