// SPDX-License-Identifier: Apache-2.0
// Reads records, or one text field of each, from JSON Lines or a JSON array.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "stepforge/records/content_reader.h"
#include "stepforge/records/record_fault.h"

namespace stepforge {

/// Where record `number`, counted from 1, is.
using RecordLocation = std::function<std::string(int64_t number)>;

/// Reads records of a text that holds them whole, as read_json_lines() does.
using RecordReader = void (*)(std::string_view text, const std::optional<std::string>& field,
                              const RecordLocation& location,
                              const std::function<void(std::string_view)>& document,
                              const FaultHandler& on_fault);

/// Calls `document` with `field` of every line of `text` that is not blank, or with the line itself if `field` is
/// not given. Calls `on_fault` for a line that is malformed or for which `document` throws FormatError; its message
/// begins with location(line). Without `on_fault` throws FormatError with that message.
void read_json_lines(std::string_view text, const std::optional<std::string>& field,
                     const RecordLocation& location, const std::function<void(std::string_view)>& document,
                     const FaultHandler& on_fault = {});

/// The same for the rows of a table (records/table_reader.h), in which a malformed row is a line of its own.
void read_table_rows(std::string_view text, const std::optional<std::string>& field,
                     const RecordLocation& location, const std::function<void(std::string_view)>& document,
                     const FaultHandler& on_fault = {});

/// Whether the text is one JSON array, as LLaMA-Factory's data sets are, instead of lines.
bool begins_json_array(std::string_view text);

/// The same for the elements of one JSON array of less than 4 GiB. Throws FormatError if the array itself is malformed.
void read_json_array(std::string_view text, const std::optional<std::string>& field,
                     const RecordLocation& location, const std::function<void(std::string_view)>& document,
                     const FaultHandler& on_fault = {});

}  // namespace stepforge
