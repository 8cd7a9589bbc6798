// SPDX-License-Identifier: Apache-2.0
// Hugging Face model folders: one model.safetensors, or shards with model.safetensors.index.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/tensorfile/safetensors.h"
#include "stepforge/tensorfile/tensor_folder.h"

namespace stepforge {

inline constexpr std::string_view kSingleFileName = "model.safetensors";
inline constexpr std::string_view kIndexFileName = "model.safetensors.index.json";
inline constexpr int64_t kDefaultShardBytes = 5'000'000'000;

/// model.safetensors.index.json: the file that holds each tensor.
struct HfIndex {
  std::map<std::string, std::string, std::less<>> weight_map;
  int64_t total_bytes = 0;
};

/// Throws Error if the file cannot be read, FormatError naming it and all errors if it is malformed or if a
/// file name is not a plain one. "metadata" and its "total_size" may be missing, as in some published models;
/// then total_bytes is 0.
HfIndex read_hf_index(const std::filesystem::path& path);

/// Replaces the file atomically. Throws Error.
void write_hf_index(const std::filesystem::path& path, const HfIndex& index);

/// One file of a model that is to be written.
struct ShardPlan {
  std::string file_name;
  std::vector<size_t> tensors;  ///< indices into the planned list
  int64_t bytes = 0;
};

/// Divides `specs`, in order, into files of at most `max_shard_bytes` of data; a larger tensor gets its own
/// file. A single file is called model.safetensors, several model-00001-of-0000N.safetensors.
std::vector<ShardPlan> plan_shards(std::span<const TensorSpec> specs,
                                   int64_t max_shard_bytes = kDefaultShardBytes);

/// The index of a plan.
HfIndex index_of_shards(std::span<const TensorSpec> specs, std::span<const ShardPlan> shards);

/// Whether the folder has weights that open_hf_weights() finds. Throws UsageError if it is not certain which.
bool holds_hf_weights(const std::filesystem::path& folder);

/// Opens a model folder (model.safetensors, else the files of the index, else all shards of one model, or the only
/// .safetensors file) or one .safetensors file. Names that wrappers have changed become those of transformers
/// (wrapped_names.h); note() says so. Throws UsageError if there are no weights, naming what there is instead
/// (other_weights.h), FormatError listing all missing files and all differences between the index and the files.
TensorFolder open_hf_weights(const std::filesystem::path& path);

}  // namespace stepforge
