// SPDX-License-Identifier: Apache-2.0
// The values of MosaicML's format as JSON, by the name of their encoding.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace stepforge {

struct MdsEncoding {
  std::string_view name;
  int64_t number_size;  ///< bytes of a number; 0: of variable size
  /// Appends a value; of a number there must be number_size bytes. Throws FormatError, without a place, if a value of the encoding
  /// json is not JSON.
  void (*append)(std::string& json, std::string_view bytes);
};

/// Null if values of the encoding are neither text, JSON nor numbers.
const MdsEncoding* find_mds_encoding(std::string_view name);

}  // namespace stepforge
