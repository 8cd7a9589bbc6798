// SPDX-License-Identifier: Apache-2.0
#include "stepforge/base/json.h"

#include <charconv>
#include <functional>
#include <system_error>
#include <unordered_set>
#include <utility>
#include <vector>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/base/json_scanner.h"
#include "stepforge/base/lfs_pointer.h"
#include "stepforge/base/utf8.h"

namespace stepforge {
namespace {

/// Builds a document from its text.
class DocumentBuilder {
 public:
  DocumentBuilder(std::string_view text, const std::string& source, const JsonLimits& limits)
      : scanner_(text, source), levels_left_(limits.max_depth), limits_(limits) {}

  Json build() {
    Json document = value();
    scanner_.expect_end();
    return document;
  }

 private:
  Json value() {
    switch (scanner_.peek()) {
      case '{':
        return nested([this] { return object(); });
      case '[':
        return nested([this] { return array(); });
      case '"':
        return string();
      case 't':
        scanner_.expect_word("true");
        return true;
      case 'f':
        scanner_.expect_word("false");
        return false;
      case 'n':
        scanner_.expect_word("null");
        return nullptr;
      default:
        return number();
    }
  }

  template <typename Read>
  Json nested(const Read& read) {
    if (levels_left_-- == 0) scanner_.fail(format("JSON nested deeper than {} levels", limits_.max_depth));
    Json value = read();
    ++levels_left_;
    return value;
  }

  void check_size(size_t size) const {
    if (static_cast<int64_t>(size) >= limits_.max_elements)
      scanner_.fail(format("more than {} elements in one JSON array or object", limits_.max_elements));
  }

  std::string string() {
    std::string text;
    scanner_.read_string(text);
    return text;
  }

  Json object() {
    Json object = Json::object();
    auto& members = object.get_ref<Json::object_t&>();
    const auto key_of = [&members](size_t i) -> const std::string& {
      return members.begin()[static_cast<ptrdiff_t>(i)].first;
    };
    const auto hash = [key_of](size_t i) { return std::hash<std::string>()(key_of(i)); };
    const auto equal = [key_of](size_t i, size_t j) { return key_of(i) == key_of(j); };
    // Indexes, since copies of the keys of a vocabulary would take as much memory as the vocabulary.
    std::unordered_set<size_t, decltype(hash), decltype(equal)> keys(0, hash, equal);
    scanner_.expect('{');
    if (scanner_.accept('}')) return object;
    do {
      check_size(members.size());
      scanner_.peek();
      const size_t start = scanner_.offset();
      append_member(object, string(), nullptr);
      if (!keys.insert(members.size() - 1).second) {
        const std::string& key = members.back().first;
        scanner_.fail_at(start, format("key {} appears twice in one JSON object", quoted_for_message(key)));
      }
      scanner_.expect(':');
      members.back().second = value();
    } while (scanner_.accept(','));
    scanner_.expect('}');
    return object;
  }

  Json array() {
    Json elements = Json::array();
    scanner_.expect('[');
    if (scanner_.accept(']')) return elements;
    do {
      check_size(elements.size());
      elements.push_back(value());
    } while (scanner_.accept(','));
    scanner_.expect(']');
    return elements;
  }

  /// A whole number if it is written as one and fits 64 bits, else a double.
  Json number() {
    const std::string_view text = scanner_.read_number();
    const char* const first = text.data();
    const char* const last = first + text.size();
    const auto parsed = [first, last](auto& value) {
      const auto [end, failure] = std::from_chars(first, last, value);
      return failure == std::errc() && end == last;
    };
    uint64_t natural = 0;
    if (parsed(natural)) return natural;
    int64_t integer = 0;
    if (parsed(integer)) return integer;
    double real = 0.0;
    if (!parsed(real)) scanner_.fail(format("{} does not fit a double", quoted_for_message(text)));
    return real;
  }

  JsonScanner scanner_;
  int levels_left_;
  const JsonLimits& limits_;
};

}  // namespace

Json parse_json(std::string_view text, const std::string& source, const JsonLimits& limits) {
  if (static_cast<int64_t>(text.size()) > limits.max_bytes) {
    throw FormatError(
        format("{}: {} bytes of JSON; at most {} are accepted", source, text.size(), limits.max_bytes));
  }
  return DocumentBuilder(text, source, limits).build();
}

void append_member(Json& object, std::string key, Json value) {
  std::vector<Json::object_t::value_type>& members = object.get_ref<Json::object_t&>();
  members.emplace_back(std::move(key), std::move(value));
}

Json read_json_file(const std::filesystem::path& path, const JsonLimits& limits) {
  const std::string text = read_file(path, limits.max_bytes);
  refuse_lfs_pointer(text, static_cast<int64_t>(text.size()), path.string());
  return parse_json(text, path.string(), limits);
}

}  // namespace stepforge
