// SPDX-License-Identifier: Apache-2.0
#include "stepforge/records/csv_reader.h"

#include <algorithm>
#include <set>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/utf8.h"
#include "stepforge/records/decompressor.h"

namespace stepforge {

namespace {

constexpr size_t kBlockBytes = size_t{1} << 18;
/// Every row repeats the names of the columns.
constexpr int64_t kMaxHeaderBytes = int64_t{1} << 20;

template <char kSeparator>
std::unique_ptr<ContentReader> open_csv(const TextFile& file, const std::optional<std::string>& /*column*/) {
  return std::make_unique<CsvReader>(open_bytes(file.path), kSeparator, file.path.string());
}

}  // namespace

constexpr FileFormat kCsvFormat{
    .name = "csv", .option = "csv", .extensions = ".csv", .read = read_table_rows, .open = open_csv<','>};
constexpr FileFormat kTsvFormat{
    .name = "tsv", .option = "csv", .extensions = ".tsv", .read = read_table_rows, .open = open_csv<'\t'>};

CsvReader::CsvReader(std::unique_ptr<ContentReader> input, char separator, std::string name,
                     int64_t max_row_bytes)
    : input_(std::move(input)), separator_(separator), name_(std::move(name)), max_row_bytes_(max_row_bytes) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (rest().starts_with(kByteOrderMark)) use(kByteOrderMark.size());
  read_header();
}

void CsvReader::read_header() {
  if (!skip_empty_lines()) fail("the file is empty; its first line names the columns");
  std::set<std::string> names;
  int64_t bytes = 0;
  for (Ending ending = Ending::separator; ending == Ending::separator;) {
    std::string name;  // escaped, which keeps different names different
    ending = read_field(name);
    if (name.empty()) {
      fail(format("column {} has no name; the first line names the columns, such as text{}label",
                  names.size() + 1, std::string(1, separator_)));
    }
    if (!names.insert(name).second) fail(format("two columns have the name {}", quoted_for_message(name)));
    keys_.push_back(format("\"{}\":\"", name));
    bytes += std::ssize(keys_.back());
    if (bytes > kMaxHeaderBytes) fail(format("names of more than {} bytes", kMaxHeaderBytes));
  }
  row_ = 1;
}

bool CsvReader::next_row(std::string& json) {
  if (!skip_empty_lines()) return false;
  size_t fields = 0;
  json = "{";
  std::string surplus;
  for (Ending ending = Ending::separator; ending == Ending::separator; ++fields) {
    if (fields >= keys_.size()) {
      surplus.clear();
      ending = read_field(surplus);
      continue;
    }
    if (fields > 0) json += ',';
    json += keys_[fields];
    ending = read_field(json);
    json += '"';
  }
  json += '}';
  ++row_;
  if (fields != keys_.size())
    throw RowFault(format("{} fields, but the header has {}", fields, keys_.size()));
  return true;
}

CsvReader::Ending CsvReader::read_field(std::string& json) {
  if (rest().starts_with('"')) {
    read_quoted(json);
  } else {
    read_plain(json);
  }
  return read_ending();
}

void CsvReader::read_plain(std::string& json) {
  const auto is_end = [this](char c) { return c == separator_ || c == '\n' || c == '\r'; };
  while (!at_end()) {
    const std::string_view text = rest();
    const auto count = static_cast<size_t>(std::find_if(text.begin(), text.end(), is_end) - text.begin());
    append(json, text.substr(0, count));
    use(count);
    if (count < text.size()) return;
  }
}

void CsvReader::read_quoted(std::string& json) {
  use(1);
  while (!at_end()) {
    const std::string_view text = rest();
    const size_t count = std::min(text.size(), text.find('"'));
    append(json, text.substr(0, count));
    use(count);
    if (count == text.size()) continue;
    use(1);
    if (!rest().starts_with('"')) return;
    append(json, "\"");
    use(1);
  }
  fail("a quote is not closed before the end of the file");
}

CsvReader::Ending CsvReader::read_ending() {
  if (at_end()) return Ending::file;
  const char c = rest().front();
  use(1);
  if (c == separator_) return Ending::separator;
  if (c == '\n') return Ending::line;
  if (c != '\r') fail("text follows a closing quote; a quote inside of a field in quotes is written twice");
  if (at_end()) return Ending::file;
  if (!rest().starts_with('\n')) fail("a carriage return without a line feed; put the field in quotes");
  use(1);
  return Ending::line;
}

void CsvReader::append(std::string& json, std::string_view piece) const {
  append_json_escaped(json, piece);
  const int64_t limit = row_ == 0 ? kMaxHeaderBytes : max_row_bytes_;
  if (std::ssize(json) > limit)
    fail(format("more than {} bytes; at most that many are accepted. Is a quote not closed?", limit));
}

bool CsvReader::skip_empty_lines() {
  while (rest().starts_with('\n') || rest().starts_with('\r')) read_ending();
  return !at_end();
}

std::string_view CsvReader::rest() {
  if (used_ == block_.size()) {
    block_.resize(kBlockBytes);
    block_.resize(static_cast<size_t>(input_->read(block_)));
    used_ = 0;
  }
  return std::string_view(block_).substr(used_);
}

void CsvReader::fail(std::string_view fault) const {
  throw FormatError(row_ == 0 ? format("{}: header: {}", name_, fault)
                              : format("{}: row {}: {}", name_, row_, fault));
}

}  // namespace stepforge
