// SPDX-License-Identifier: Apache-2.0
// The metadata by which PyTorch's torch.distributed.checkpoint.HuggingFaceStorageReader finds the parts of
// sharded tensors in safetensors files.
//
// That reader opens every *.safetensors file of a folder and no others. The metadata key DCP_SHARDING_INFO
// holds JSON: for every tensor of the file, the index of its first element in the full tensor. The size of a
// full tensor is the largest (offset + shape) over all files.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/tensorfile/safetensors.h"

namespace stepforge {

/// By tensor name: where in the full tensor the part in a file begins, one number per dimension.
using SavedOffsets = std::map<std::string, std::vector<int64_t>, std::less<>>;

/// The `__metadata__` of a checkpoint file with these tensors.
SafetensorsMetadata dcp_metadata(const SavedOffsets& offsets);

/// The offsets of all tensors of a file: zeros if its metadata has no sharding information. Throws
/// FormatError if the information is malformed, lacks a tensor of the file or names another.
SavedOffsets read_saved_offsets(const SafetensorsFile& file);

/// "shard-00002-model-00001-of-00003.safetensors" for rank 1 and the first of its three files of kind
/// "model". Throws Error if a number is negative or `file` >= `files`.
std::string dcp_file_name(std::string_view kind, int rank, int file, int files);

}  // namespace stepforge
