// SPDX-License-Identifier: Apache-2.0
// Files of a given content.
#pragma once

#include <filesystem>
#include <fstream>
#include <string_view>

namespace stepforge::testing {

inline void write_text(const std::filesystem::path& path, std::string_view text) {
  std::ofstream(path, std::ios::binary) << text;
}

}  // namespace stepforge::testing
