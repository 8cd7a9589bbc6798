// SPDX-License-Identifier: Apache-2.0
// TOML files of the source tree that are compiled into the program (cmake/EmbedToml.cmake).
#pragma once

#include <algorithm>
#include <span>
#include <string_view>

namespace stepforge {

struct EmbeddedFile {
  std::string_view name;  ///< without folder and extension
  std::string_view text;  ///< TOML; the first line is a comment that describes the file.

  /// The first line without "# ".
  std::string_view summary() const { return text.substr(2, text.find('\n') - 2); }
};

/// Returns nullptr if there is no such file.
inline const EmbeddedFile* find_embedded(std::span<const EmbeddedFile> files, std::string_view name) {
  const auto found = std::ranges::find(files, name, &EmbeddedFile::name);
  return found == files.end() ? nullptr : &*found;
}

}  // namespace stepforge
