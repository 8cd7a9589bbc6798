// SPDX-License-Identifier: Apache-2.0
#include "stepforge/data/content_reader.h"

#include "stepforge/data/decompressor.h"

namespace stepforge {

namespace fs = std::filesystem;

bool is_sequential_name(const fs::path& path) {
  return is_compressed_name(path);
}

std::unique_ptr<ContentReader> open_contents(const fs::path& path) {
  return open_decompressor(path);
}

}  // namespace stepforge
