// SPDX-License-Identifier: Apache-2.0
// Writes a test file.
#pragma once

#include <filesystem>
#include <fstream>
#include <string_view>

namespace stepforge::testing {

inline void write_text(const std::filesystem::path& path, std::string_view text) {
  std::ofstream(path, std::ios::binary) << text;
}

}  // namespace stepforge::testing
