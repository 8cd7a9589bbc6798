// SPDX-License-Identifier: Apache-2.0
// The values of MosaicML's format as JSON, by the name of their encoding.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace stepforge {

/// Bytes of a number; 0 if the encoding is not one of a number.
int64_t mds_number_size(std::string_view encoding);

/// Whether append_mds_value() knows the encoding: text, JSON and numbers.
bool is_readable_mds(std::string_view encoding);

/// Appends a value. A number must have the bytes that mds_number_size() says. Throws FormatError, without a place, if
/// a value of the encoding json is not JSON.
void append_mds_value(std::string& json, std::string_view encoding, std::string_view bytes);

}  // namespace stepforge
