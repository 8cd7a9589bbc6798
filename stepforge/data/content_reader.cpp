// SPDX-License-Identifier: Apache-2.0
#include "stepforge/data/content_reader.h"

#include "stepforge/data/decompressor.h"
#include "stepforge/data/arrow_library.h"

namespace stepforge {

namespace fs = std::filesystem;

bool is_sequential_name(const fs::path& path) {
  return is_compressed_name(path) || is_arrow_name(path);
}

std::unique_ptr<ContentReader> open_contents(const fs::path& path, const std::optional<std::string>& column) {
  if (is_arrow_name(path)) return open_arrow({.path = path, .column = column});
  return open_decompressor(path);
}

}  // namespace stepforge
