// SPDX-License-Identifier: Apache-2.0
#include "stepforge/data/json_lines.h"

#include <algorithm>
#include <memory>
#include <vector>

#include <simdjson.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

namespace {

using simdjson::dom::element_type;

std::string kind_of(element_type type) {
  switch (type) {
    case element_type::ARRAY:
      return "an array";
    case element_type::OBJECT:
      return "an object";
    case element_type::INT64:
    case element_type::UINT64:
    case element_type::DOUBLE:
      return "a number";
    case element_type::STRING:
      return "a string";
    case element_type::BOOL:
      return "true or false";
    case element_type::NULL_VALUE:
      return "null";
  }
  return "of an unknown kind";
}

/// The first few keys of an object, for a message.
std::string keys_of(const simdjson::dom::object& object) {
  constexpr size_t kShown = 8;
  std::vector<std::string> keys;
  for (const auto& member : object) {
    if (keys.size() == kShown) {
      keys.emplace_back("...");
      break;
    }
    keys.push_back(format("\"{}\"", member.key));
  }
  return keys.empty() ? "no keys" : join(keys, ", ");
}

/// Where a fault is, with the fault; throws.
using Fail = std::function<void(const std::string& fault)>;

/// The text of `field` in a record. Calls `fail` if there is none.
std::string_view field_of(const simdjson::dom::element& record, const std::string& field, const Fail& fail) {
  simdjson::dom::object object;
  if (record.get(object) != simdjson::SUCCESS)
    fail(format("{}, not an object like {{\"{}\": \"...\"}}", kind_of(record.type()), field));
  simdjson::dom::element member;
  if (object.at_key(field).get(member) != simdjson::SUCCESS)
    fail(format("no field \"{}\"; it has {}: name the field that holds the text", field, keys_of(object)));
  std::string_view text;
  if (member.get(text) != simdjson::SUCCESS)
    fail(format("field \"{}\" is {}, not a string", field, kind_of(member.type())));
  return text;
}

/// Calls `document`; what it throws goes to `fail`.
void deliver(std::string_view found, const std::function<void(std::string_view)>& document,
             const Fail& fail) {
  try {
    document(found);
  } catch (const FormatError& fault) {
    fail(fault.what());
  }
}

/// Parses lines in place. simdjson reads up to 64 bytes past the end, so lines near the end of the text are
/// copied.
class LineParser {
 public:
  LineParser(std::string_view text, const std::optional<std::string>& field) : text_(text), field_(field) {}

  /// The document in the line [begin, end), valid until the next call.
  std::string_view document_of(size_t begin, size_t end, const Fail& fail) {
    if (static_cast<int64_t>(end - begin) > kMaxJsonLineBytes)
      fail(format("a line of {} bytes; at most {} are accepted", end - begin, kMaxJsonLineBytes));
    if (!field_) return text_.substr(begin, end - begin);
    simdjson::dom::element record;
    const auto parsed = parse(begin, end).get(record);
    if (parsed != simdjson::SUCCESS) fail(format("invalid JSON: {}", simdjson::error_message(parsed)));
    return field_of(record, *field_, fail);
  }

 private:
  simdjson::simdjson_result<simdjson::dom::element> parse(size_t begin, size_t end) {
    const auto line = text_.substr(begin, end - begin);
    if (text_.size() - end >= simdjson::SIMDJSON_PADDING) {
      return parser_.parse(line.data(), line.size(), /*realloc_if_needed=*/false);
    }
    tail_ = simdjson::padded_string(line);
    return parser_.parse(tail_);
  }

  std::string_view text_;
  const std::optional<std::string>& field_;
  simdjson::dom::parser parser_;
  simdjson::padded_string tail_;
};

}  // namespace

void read_json_lines(std::string_view text, const std::optional<std::string>& field,
                     const RecordLocation& location, const std::function<void(std::string_view)>& document) {
  LineParser parser(text, field);
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.size(), text.find('\n', begin));
    const Fail fail = [&](const std::string& fault) {
      const auto before = text.substr(0, begin);
      throw FormatError(
          format("{}: {}", location(std::count(before.begin(), before.end(), '\n') + 1), fault));
    };
    const bool blank = text.substr(begin, end - begin).find_first_not_of(" \t\r") == std::string_view::npos;
    if (!blank) deliver(parser.document_of(begin, end, fail), document, fail);
    begin = end + 1;
  }
}

bool begins_json_array(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  return first != std::string_view::npos && text[first] == '[';
}

void read_json_array(std::string_view text, const std::optional<std::string>& field,
                     const RecordLocation& location, const std::function<void(std::string_view)>& document) {
  simdjson::dom::parser parser;
  simdjson::dom::array records;
  const simdjson::padded_string padded(text);
  if (const auto parsed = parser.parse(padded).get(records); parsed != simdjson::SUCCESS)
    throw FormatError(format("{}: invalid JSON: {}", location(1), simdjson::error_message(parsed)));
  int64_t number = 0;
  for (const simdjson::dom::element record : records) {
    ++number;
    const Fail fail = [&](const std::string& fault) {
      throw FormatError(format("{}: {}", location(number), fault));
    };
    const std::string whole = field ? "" : std::string(simdjson::minify(record));
    deliver(field ? field_of(record, *field, fail) : whole, document, fail);
  }
}

}  // namespace stepforge
