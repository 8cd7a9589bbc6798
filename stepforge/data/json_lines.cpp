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

/// Parses lines in place. simdjson reads up to 64 bytes past the end, so lines near the end of the text are
/// copied.
class LineParser {
 public:
  LineParser(std::string_view text, const std::optional<std::string>& field,
             const std::function<std::string(int64_t line)>& location)
      : text_(text), field_(field), location_(location) {}

  /// The document in the line [begin, end), valid until the next call.
  std::string_view document_of(size_t begin, size_t end) {
    if (static_cast<int64_t>(end - begin) > kMaxJsonLineBytes) {
      fail(begin, format("a line of {} bytes; at most {} are accepted", end - begin, kMaxJsonLineBytes));
    }
    if (!field_) return text_.substr(begin, end - begin);
    simdjson::dom::element value;
    const auto parsed = parse(begin, end).get(value);
    if (parsed != simdjson::SUCCESS) fail(begin, format("invalid JSON: {}", simdjson::error_message(parsed)));
    simdjson::dom::object object;
    if (value.get(object) != simdjson::SUCCESS) {
      fail(begin, format("{}, not an object like {{\"{}\": \"...\"}}", kind_of(value.type()), *field_));
    }
    simdjson::dom::element member;
    if (object.at_key(*field_).get(member) != simdjson::SUCCESS) {
      fail(begin, format("no field \"{}\"; it has {}: name the field that holds the text", *field_,
                         keys_of(object)));
    }
    std::string_view text;
    if (member.get(text) != simdjson::SUCCESS) {
      fail(begin, format("field \"{}\" is {}, not a string", *field_, kind_of(member.type())));
    }
    return text;
  }

  [[noreturn]] void fail(size_t begin, const std::string& fault) const {
    const auto before = text_.substr(0, begin);
    throw FormatError(format("{}: {}", location_(std::count(before.begin(), before.end(), '\n') + 1), fault));
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
  const std::function<std::string(int64_t line)>& location_;
  simdjson::dom::parser parser_;
  simdjson::padded_string tail_;
};

}  // namespace

void read_json_lines(std::string_view text, const std::optional<std::string>& field,
                     const std::function<std::string(int64_t line)>& location,
                     const std::function<void(std::string_view)>& document) {
  LineParser parser(text, field, location);
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.size(), text.find('\n', begin));
    const bool blank = text.substr(begin, end - begin).find_first_not_of(" \t\r") == std::string_view::npos;
    if (!blank) {
      const std::string_view found = parser.document_of(begin, end);
      try {
        document(found);
      } catch (const FormatError& fault) {
        parser.fail(begin, fault.what());
      }
    }
    begin = end + 1;
  }
}

}  // namespace stepforge
