// SPDX-License-Identifier: Apache-2.0
// What a safetensors file must say about itself for PyTorch's distributed checkpoint
// (torch.distributed.checkpoint. HuggingFaceStorageReader) to find in it the part of each tensor that it
// holds.
//
// That reader opens every *.safetensors file of the folder and nothing else. A file's metadata key
// DCP_SHARDING_INFO holds JSON that gives, for each tensor of the file without exception, the index of its
// first element in the whole tensor. A whole tensor's size is the largest (offset + shape) over all files.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/tensorfile/safetensors.h"

namespace stepforge {

/// Where in the whole tensor the part in a file starts, by tensor name: one number for each dimension.
using SavedOffsets = std::map<std::string, std::vector<int64_t>, std::less<>>;

/// The `__metadata__` of a checkpoint file that holds these tensors.
SafetensorsMetadata dcp_metadata(const SavedOffsets& offsets);

/// The offsets of every tensor of an opened file: zeros if its metadata has no sharding information. Throws
/// FormatError if the information is malformed, lacks a tensor or names one that the file does not hold.
SavedOffsets read_saved_offsets(const SafetensorsFile& file);

/// "shard-00002-model-00001-of-00003.safetensors" for rank 1 and the first of its three files of kind
/// "model". Throws Error on a number below 0 or a file beyond `files`.
std::string dcp_file_name(std::string_view kind, int rank, int file, int files);

}  // namespace stepforge
