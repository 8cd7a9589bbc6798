// SPDX-License-Identifier: Apache-2.0
// Strict JSON: size and depth caps, duplicate keys refused. Values are nlohmann::ordered_json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace stepforge {

using Json = nlohmann::ordered_json;

struct JsonLimits {
  int64_t max_bytes = int64_t{256} << 20;
  int max_depth = 64;
  /// In one array or object.
  int64_t max_elements = std::numeric_limits<int64_t>::max();
};

/// Parses one document. Throws FormatError naming `source`, the byte offset and the fault: invalid syntax, a
/// duplicate key, more than max_depth levels, max_elements or max_bytes.
Json parse_json(std::string_view text, const std::string& source, const JsonLimits& limits = {});

/// Adds a member at the end of `object`; the caller makes sure that keys are distinct. The library's own
/// insertion compares with every key, which is too slow for a vocabulary of 100,000 tokens.
void append_member(Json& object, std::string key, Json value);

/// Throws Error if the file cannot be read, otherwise as parse_json does.
Json read_json_file(const std::filesystem::path& path, const JsonLimits& limits = {});

}  // namespace stepforge
