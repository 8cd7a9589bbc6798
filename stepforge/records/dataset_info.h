// SPDX-License-Identifier: Apache-2.0
// LLaMA-Factory's dataset_info.json: where data sets lie and what the parts of their records are called.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "stepforge/records/conversation.h"

namespace stepforge {

/// One data set of such a file.
struct DatasetEntry {
  std::filesystem::path path;        ///< a file or a folder, inside the folder of dataset_info.json
  std::optional<ChatLayout> layout;  ///< none: plain texts
  std::string field;                 ///< of plain texts
  ChatKeys keys;
  int64_t max_records = 0;  ///< the first records that are used; 0 = all
};

/// Reads the entry `name` of `info`: a file, or a folder that holds dataset_info.json. A data set of "formatting"
/// alpaca with "columns" but without a "response" is plain text, as for pre-training. Throws UsageError if there is no
/// such file or entry, or if the data are remote, images or of a kind that cannot be read; FormatError naming the key
/// if the entry is malformed, has a key that is not known, or names a file outside of the folder, also through
/// symbolic links.
DatasetEntry find_dataset(const std::filesystem::path& info, const std::string& name);

}  // namespace stepforge
