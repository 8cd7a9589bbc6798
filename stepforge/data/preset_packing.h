// SPDX-License-Identifier: Apache-2.0
// Rows that files name, in the layout of XTuner's pack_level "preset". `boundaries.npy`, int64 [rows + 1]:
// where the pieces of each row begin in `samples.npy`, int64 [pieces, 6]: number of the data set (0, as a
// folder describes one), number of the document, two offsets in characters (-1: not used), and the first and
// the end of its tokens that the row has. `packing.json` is ours and may be absent: {"every_document_once":
// false} if some tokens may be used several times or not at all.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>

#include "stepforge/data/packing.h"

namespace stepforge {

/// Reads rows of at most `capacity` tokens for documents of these lengths. Throws UsageError if a file is
/// missing, FormatError naming file, row and piece if one is malformed, a symbolic link, does not fit the
/// documents, or, unless packing.json allows that, does not use every document, or a token twice.
PackTable read_pack_table(const std::filesystem::path& folder, std::span<const int64_t> lengths,
                          int64_t capacity);

/// Writes the table as a new folder, complete or not at all. Throws Error if it exists or cannot be written.
void write_pack_table(const std::filesystem::path& folder, const PackTable& table);

}  // namespace stepforge
