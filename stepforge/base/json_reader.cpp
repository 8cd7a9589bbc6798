// SPDX-License-Identifier: Apache-2.0
#include "stepforge/base/json_reader.h"

#include <algorithm>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/utf8.h"

namespace stepforge {
namespace {

std::string name_of(const std::string& path) {
  return path.empty() ? "the document" : quoted_for_message(path);
}

std::string integer_text(int64_t low, int64_t high) {
  if (high != std::numeric_limits<int64_t>::max()) return format("an integer from {} to {}", low, high);
  if (low == 0) return "a non-negative integer";
  if (low == 1) return "a positive integer";
  return low == std::numeric_limits<int64_t>::min() ? "an integer" : format("an integer of at least {}", low);
}

bool is_signed_64(const Json& value) {
  return value.is_number_integer() &&
         (!value.is_number_unsigned() ||
          value.get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()));
}

}  // namespace

JsonReader::JsonReader(const Json& document, std::string source, std::string path)
    : JsonReader(document, std::make_shared<const std::string>(std::move(source)), std::move(path)) {}

JsonReader::JsonReader(const Json& value, std::shared_ptr<const std::string> source, std::string path)
    : value_(value), source_(std::move(source)), path_(std::move(path)) {}

const JsonReader& JsonReader::object() const {
  if (!value_.is_object()) expected("a JSON object");
  return *this;
}

const Json* JsonReader::find(std::string_view key) const {
  object();
  const auto found = value_.find(key);
  return found == value_.end() || found->is_null() ? nullptr : &*found;
}

std::string JsonReader::path_of(std::string_view key) const {
  return path_.empty() ? std::string(key) : format("{}.{}", path_, key);
}

JsonReader JsonReader::operator[](std::string_view key) const {
  const Json* found = find(key);
  if (found == nullptr) throw FormatError(format("{}: {} is missing", *source_, name_of(path_of(key))));
  return {*found, source_, path_of(key)};
}

void JsonReader::only_keys(std::initializer_list<std::string_view> keys) const {
  object();
  for (const auto& [key, unused] : value_.items()) {
    if (std::find(keys.begin(), keys.end(), key) != keys.end()) continue;
    fail(format("unknown key {}; it may ask for something that is not implemented", json_excerpt(Json(key))));
  }
}

size_t JsonReader::size() const {
  if (!value_.is_array()) expected("an array");
  return value_.size();
}

JsonReader JsonReader::at(size_t index) const {
  return {value_[index], source_, format("{}[{}]", path_, index)};
}

const std::string& JsonReader::text() const {
  if (!value_.is_string()) expected("a string");
  return value_.get_ref<const std::string&>();
}

bool JsonReader::boolean() const {
  if (!value_.is_boolean()) expected("true or false");
  return value_.get<bool>();
}

double JsonReader::number() const {
  if (!value_.is_number()) expected("a number");
  return value_.get<double>();
}

int64_t JsonReader::integer(int64_t low, int64_t high) const {
  if (!is_signed_64(value_) || value_.get<int64_t>() < low || value_.get<int64_t>() > high) {
    expected(integer_text(low, high));
  }
  return value_.get<int64_t>();
}

std::string JsonReader::text_or(std::string_view key, std::string_view fallback) const {
  return has(key) ? (*this)[key].text() : std::string(fallback);
}

bool JsonReader::boolean_or(std::string_view key, bool fallback) const {
  return has(key) ? (*this)[key].boolean() : fallback;
}

double JsonReader::number_or(std::string_view key, double fallback) const {
  return has(key) ? (*this)[key].number() : fallback;
}

int64_t JsonReader::integer_or(std::string_view key, int64_t fallback, int64_t low) const {
  return has(key) ? (*this)[key].integer(low) : fallback;
}

void JsonReader::fail(std::string_view fault) const {
  throw FormatError(format("{}: {}: {}", *source_, name_of(path_), fault));
}

void JsonReader::refuse(std::string_view rule) const {
  throw FormatError(format("{}: {} is {}: {}", *source_, name_of(path_), json_excerpt(value_), rule));
}

void JsonReader::refuse(std::string_view key, std::string_view rule) const {
  if (has(key)) (*this)[key].refuse(rule);
  throw FormatError(format("{}: {} is absent: {}", *source_, name_of(path_of(key)), rule));
}

void JsonReader::expected(std::string_view kind) const {
  throw FormatError(format("{}: {} is {}, not {}", *source_, name_of(path_), json_excerpt(value_), kind));
}

std::string json_excerpt(const Json& value) {
  constexpr size_t kMaxShown = 80;
  const std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  return text.size() <= kMaxShown ? text : text.substr(0, kMaxShown - 3) + "...";
}

}  // namespace stepforge
