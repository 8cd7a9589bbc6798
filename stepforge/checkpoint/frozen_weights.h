// SPDX-License-Identifier: Apache-2.0
// Checkpoints without the weights of frozen units. Their state names a folder with these weights, and their hashes:
//   "frozen_weights": {"from": "/models/base", "hashes": {"model.embed_tokens.weight": "3f...", ...}}
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/base/json.h"
#include "stepforge/checkpoint/checkpoint_ranks.h"
#include "stepforge/modelspec/model_spec.h"
#include "stepforge/tensorfile/tensor_folder.h"

namespace stepforge {

inline constexpr std::string_view kFrozenWeights = "frozen_weights";

/// The weights that a checkpoint leaves out, from its state. Empty: it has all of them.
struct FrozenWeights {
  std::filesystem::path from;  ///< a Hugging Face folder, or a checkpoint that has them
  Json hashes;                 ///< by name, of shape and values as fp32
  std::string taken = {};      ///< initial_adapter_hash() of what the run is without; "" if nothing

  bool none() const { return hashes.empty(); }
  std::vector<std::string> names() const;
  bool contains(std::string_view name) const { return hashes.contains(name); }
  Json to_json() const;
};

/// `state` is what `source` holds. Throws FormatError naming the field.
FrozenWeights frozen_weights_of(const Json& state, const std::string& source);

/// The names of the tensors of frozen units; state of blocks is not among them.
std::vector<std::string> frozen_names(const ModelSpec& model);

/// The weights at `path`: those of a Hugging Face folder, or those that a checkpoint itself holds.
TensorFolder open_weights(const std::filesystem::path& path);

/// Where the frozen weights of `path` are: `path` itself, unless it is a checkpoint that leaves them out.
std::filesystem::path home_of_frozen_weights(const std::filesystem::path& path);

/// The hash of each of these tensors, of which each rank reads a share. Throws UsageError on all ranks if a tensor is missing
/// or its files cannot be read; `subject` says whose they are: "the frozen weights of the run".
Json hash_tensors(const std::function<TensorFolder()>& open, const std::vector<std::string>& names,
                  const CheckpointRanks& ranks, const std::string& subject);

/// Throws UsageError naming the first of the tensors that differ: `fault`, then the name.
void require_equal_hashes(const Json& expected, const Json& found, const std::string& fault);

/// Adds what `frozen` leaves out to the tensors of a checkpoint.
void add_frozen_weights(TensorFolder& folder, const FrozenWeights& frozen);

}  // namespace stepforge
