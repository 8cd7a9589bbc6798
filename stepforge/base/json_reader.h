// SPDX-License-Identifier: Apache-2.0
// Typed access to a JSON document from outside. Every error names the source, the path of the value
// ("model.merges[3]"), the value and what was expected.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <memory>
#include <string>
#include <string_view>

#include "stepforge/base/json.h"

namespace stepforge {

/// One value of a document. All functions throw FormatError. A member that is null counts as absent.
class JsonReader {
 public:
  /// `document` must outlive this reader and all readers made from it. `source` names it in errors; `path` is
  /// the path of the value in it, "" for a whole document.
  JsonReader(const Json& document, std::string source, std::string path = "");
  JsonReader(Json&&, std::string, std::string = "") = delete;

  const Json& json() const { return value_; }
  const std::string& source() const { return *source_; }
  const std::string& path() const { return path_; }

  /// Members of an object.
  bool has(std::string_view key) const { return find(key) != nullptr; }
  JsonReader operator[](std::string_view key) const;
  /// Throws if there is a member that is not among `keys`.
  void only_keys(std::initializer_list<std::string_view> keys) const;

  /// Elements of an array.
  size_t size() const;
  JsonReader at(size_t index) const;

  const JsonReader& object() const;  ///< *this, if it is an object
  const std::string& text() const;
  bool boolean() const;
  double number() const;
  /// An integer in [low, high], written without decimal point or exponent.
  int64_t integer(int64_t low = std::numeric_limits<int64_t>::min(),
                  int64_t high = std::numeric_limits<int64_t>::max()) const;
  int64_t count() const { return integer(0); }

  /// A member's value, or `fallback` if it is absent.
  std::string text_or(std::string_view key, std::string_view fallback) const;
  bool boolean_or(std::string_view key, bool fallback) const;
  double number_or(std::string_view key, double fallback) const;
  int64_t integer_or(std::string_view key, int64_t fallback,
                     int64_t low = std::numeric_limits<int64_t>::min()) const;

  /// `source: "path": fault`
  [[noreturn]] void fail(std::string_view fault) const;
  /// `source: "path" is <value>: rule`
  [[noreturn]] void refuse(std::string_view rule) const;
  /// The same for a member, which may be absent.
  [[noreturn]] void refuse(std::string_view key, std::string_view rule) const;

 private:
  JsonReader(const Json& value, std::shared_ptr<const std::string> source, std::string path);
  const Json* find(std::string_view key) const;
  std::string path_of(std::string_view key) const;
  [[noreturn]] void expected(std::string_view kind) const;

  const Json& value_;
  std::shared_ptr<const std::string> source_;
  std::string path_;
};

/// A short rendering of a value for error texts: ASCII, at most 80 bytes.
std::string json_excerpt(const Json& value);

}  // namespace stepforge
