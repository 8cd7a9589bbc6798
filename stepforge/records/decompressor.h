// SPDX-License-Identifier: Apache-2.0
// Reads files from beginning to end: plain ones, gzip (RFC 1952) and Zstandard (RFC 8878).
#pragma once

#include <filesystem>
#include <memory>

#include "stepforge/records/content_reader.h"

namespace stepforge {

/// Whether the name ends in .gz, .zst or .zstd.
bool is_compressed_name(const std::filesystem::path& path);

/// The name of the file without that ending.
std::filesystem::path unpacked_name(const std::filesystem::path& path);

/// The bytes of a file, unpacked if it has such a name. Throws Error if it cannot be opened; reading it throws FormatError also if it
/// expands more than a thousandfold beyond 1 GiB.
std::unique_ptr<ContentReader> open_bytes(const std::filesystem::path& path);

}  // namespace stepforge
