// SPDX-License-Identifier: Apache-2.0
// Names of tensors that a wrapper around the model has changed: torch.compile, DistributedDataParallel, peft, Lightning.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace stepforge {

/// How tensors of a file are called in transformers' files.
struct WrappedNames {
  std::vector<std::string> names;  ///< one for each given name
  std::string what;                ///< "the prefix \"_orig_mod.\" is left out of the names of tensors"
};

/// The names without what wrappers put into them. The embedding, "model.embed_tokens.weight" in transformers' files of every
/// family here, tells the prefix, which all names must share; one that lacks "model." gets it. nullopt if the names are right
/// already, or if it is not certain what to do (then they are reported as missing and unexpected).
std::optional<WrappedNames> without_wrappers(const std::vector<std::string>& names);

}  // namespace stepforge
