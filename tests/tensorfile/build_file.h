// SPDX-License-Identifier: Apache-2.0
// Builds safetensors files by hand, without the writer under test.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>

namespace stepforge::testing {

/// The length field, the header as given, and `data` bytes of 'd'.
inline std::string build_file(std::string_view header, size_t data = 0) {
  std::string file;
  for (size_t i = 0; i < 8; ++i) file.push_back(static_cast<char>((header.size() >> (8 * i)) & 0xFF));
  file += header;
  return file.append(data, 'd');
}

/// A file that claims a header of `length` bytes.
inline std::string with_length(std::string file, uint64_t length) {
  for (size_t i = 0; i < 8; ++i) file[i] = static_cast<char>((length >> (8 * i)) & 0xFF);
  return file;
}

inline std::span<const std::byte> as_bytes(std::string_view text) {
  return std::as_bytes(std::span(text));
}

inline std::string as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

inline void put_file(const std::filesystem::path& path, std::string_view text) {
  std::ofstream(path, std::ios::binary) << text;
}

}  // namespace stepforge::testing
