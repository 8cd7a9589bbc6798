// SPDX-License-Identifier: Apache-2.0
#include "stepforge/records/json_lines.h"

#include <algorithm>
#include <memory>
#include <vector>

#include <simdjson.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/utf8.h"
#include "stepforge/records/python_json.h"
#include "stepforge/records/table_reader.h"

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
std::string names_of_fields(const simdjson::dom::object& object) {
  constexpr size_t kShown = 8;
  std::vector<std::string> keys;
  for (const auto& member : object) {
    if (keys.size() == kShown) {
      keys.emplace_back("...");
      break;
    }
    keys.push_back(quoted_for_message(member.key));
  }
  return keys.empty() ? "no keys" : join(keys, ", ");
}

/// What to set for a record without the field.
std::string advice_for(const simdjson::dom::object& object) {
  const auto has = [&](std::string_view key) { return object.at_key(key).error() == simdjson::SUCCESS; };
  const auto chat = [](std::string_view name) { return format("set format = \"{}\" for this source", name); };
  simdjson::dom::element first;
  const bool has_roles = object.at_key("conversations").at(0).at_key("role").get(first) == simdjson::SUCCESS;
  if (has("conversations")) return chat(has_roles ? "messages" : "sharegpt");
  if (has("messages")) return chat("messages");
  if (has("instruction") && has("output")) return chat("alpaca");
  if (has("prompt") && has("completion")) return chat("prompt_completion");
  return "name the field that holds the text";
}

[[noreturn]] void fail(const std::string& fault) {
  throw FormatError(fault);
}

/// The text of `field` in a record. Throws FormatError, without a location, if there is none.
std::string_view field_of(const simdjson::dom::element& record, const std::string& field) {
  simdjson::dom::object object;
  if (record.get(object) != simdjson::SUCCESS)
    fail(format("{}, not an object like {{\"{}\": \"...\"}}", kind_of(record.type()), field));
  simdjson::dom::element member;
  if (object.at_key(field).get(member) != simdjson::SUCCESS)
    fail(format("no field \"{}\"; it has {}: {}", field, names_of_fields(object), advice_for(object)));
  std::string_view text;
  if (member.get(text) != simdjson::SUCCESS)
    fail(format("field \"{}\" is {}, not a string", field, kind_of(member.type())));
  return text;
}

/// Reads one record by `read`. A FormatError that it throws gets a location and goes to `on_fault`.
template <typename Read, typename Location>
void read_record(const Read& read, const Location& location, const FaultHandler& on_fault) {
  try {
    read();
  } catch (const FormatError& fault) {
    const auto message = [&] { return format("{}: {}", location(), fault.what()); };
    if (!on_fault) throw FormatError(message());
    on_fault(message);
  }
}

/// Parses lines in place. simdjson reads up to 64 bytes past the end, so lines near the end of the text are
/// copied.
class LineParser {
 public:
  LineParser(std::string_view text, const std::optional<std::string>& field) : text_(text), field_(field) {}

  /// The document in the line [begin, end), valid until the next call.
  std::string_view document_of(size_t begin, size_t end) {
    if (static_cast<int64_t>(end - begin) > kMaxRecordBytes)
      fail(format("a line of {} bytes; at most {} are accepted", end - begin, kMaxRecordBytes));
    const auto line = text_.substr(begin, end - begin);
    if (!field_) {
      cleaned_ = with_null_for_nan(line);
      return cleaned_ ? std::string_view(*cleaned_) : line;
    }
    simdjson::dom::element record;
    auto parsed = parse(begin, end).get(record);
    if (parsed != simdjson::SUCCESS) {
      if (const auto cleaned = with_null_for_nan(line)) {
        tail_ = simdjson::padded_string(*cleaned);
        parsed = parser_.parse(tail_).get(record);
      }
    }
    if (parsed != simdjson::SUCCESS) fail(format("invalid JSON: {}", simdjson::error_message(parsed)));
    return field_of(record, *field_);
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
  std::optional<std::string> cleaned_;
};

/// Calls `read(begin, end)` for the range of each line that is not blank.
template <typename Read>
void for_each_line(std::string_view text, const RecordLocation& location, const FaultHandler& on_fault,
                   const Read& read) {
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.size(), text.find('\n', begin));
    const bool blank = text.substr(begin, end - begin).find_first_not_of(" \t\r") == std::string_view::npos;
    const auto line = [&] {
      const auto before = text.substr(0, begin);
      return location(std::count(before.begin(), before.end(), '\n') + 1);
    };
    if (!blank) read_record([&] { read(begin, end); }, line, on_fault);
    begin = end + 1;
  }
}

}  // namespace

void read_json_lines(std::string_view text, const std::optional<std::string>& field,
                     const RecordLocation& location, const std::function<void(std::string_view)>& document,
                     const FaultHandler& on_fault) {
  LineParser parser(text, field);
  for_each_line(text, location, on_fault,
                [&](size_t begin, size_t end) { document(parser.document_of(begin, end)); });
}

void read_table_rows(std::string_view text, const std::optional<std::string>& field,
                     const RecordLocation& location, const std::function<void(std::string_view)>& document,
                     const FaultHandler& on_fault) {
  LineParser parser(text, field);
  for_each_line(text, location, on_fault, [&](size_t begin, size_t end) {
    if (text[begin] == kRowFaultMark) fail(std::string(text.substr(begin + 1, end - begin - 1)));
    document(parser.document_of(begin, end));
  });
}

bool begins_json_array(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  return first != std::string_view::npos && text[first] == '[';
}

void read_json_array(std::string_view text, const std::optional<std::string>& field,
                     const RecordLocation& location, const std::function<void(std::string_view)>& document,
                     const FaultHandler& on_fault) {
  simdjson::dom::parser parser;
  simdjson::dom::array records;
  simdjson::padded_string padded(text);
  auto parsed = parser.parse(padded).get(records);
  if (parsed != simdjson::SUCCESS) {
    if (const auto cleaned = with_null_for_nan(text)) {
      padded = simdjson::padded_string(*cleaned);
      parsed = parser.parse(padded).get(records);
    }
  }
  if (parsed != simdjson::SUCCESS)
    throw FormatError(format("{}: invalid JSON: {}", location(1), simdjson::error_message(parsed)));
  int64_t number = 0;
  for (const simdjson::dom::element record : records) {
    ++number;
    const auto read = [&] {
      if (field) {
        document(field_of(record, *field));
      } else {
        document(simdjson::minify(record));
      }
    };
    read_record(read, [&] { return location(number); }, on_fault);
  }
}

}  // namespace stepforge
