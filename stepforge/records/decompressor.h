// SPDX-License-Identifier: Apache-2.0
// Reads gzip (RFC 1952) and Zstandard (RFC 8878) files from beginning to end.
#pragma once

#include <filesystem>
#include <memory>

#include "stepforge/records/content_reader.h"

namespace stepforge {

/// Whether the name ends in .gz, .zst or .zstd.
bool is_compressed_name(const std::filesystem::path& path);

/// The name of the file without that ending.
std::filesystem::path unpacked_name(const std::filesystem::path& path);

/// By the name of the file. Throws Error if it cannot be opened; reading it throws FormatError also if it expands more
/// than a thousandfold beyond 1 GiB.
std::unique_ptr<ContentReader> open_decompressor(const std::filesystem::path& path);

}  // namespace stepforge
