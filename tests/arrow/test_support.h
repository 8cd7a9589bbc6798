// SPDX-License-Identifier: Apache-2.0
// Shared by the tests of Parquet and Arrow files.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "stepforge/records/arrow_library.h"
#include "stepforge/records/content_reader.h"
#include "tests/support/paths.h"
#include "tests/support/temp_folder.h"

namespace stepforge::testing {

inline std::filesystem::path golden(const std::string& name) {
  return source_dir() / "tests/golden/records/arrow" / name;
}

/// Everything that the reader gives, in pieces of `piece` bytes.
inline std::string contents_of(const ArrowRequest& request, size_t piece = 1 << 16) {
  const auto reader = open_arrow(request);
  std::string text;
  std::string block(piece, '\0');
  for (int64_t count = std::ssize(block); count == std::ssize(block);) {
    count = reader->read(block);
    text.append(block, 0, static_cast<size_t>(count));
  }
  return text;
}

}  // namespace stepforge::testing
