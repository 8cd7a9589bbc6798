// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/base/words.h"
#include "stepforge/records/arrow_library.h"
#include "stepforge/records/csv_reader.h"
#include "stepforge/records/decompressor.h"
#include "stepforge/records/file_format.h"
#include "stepforge/records/mds_shard.h"

namespace stepforge {

namespace fs = std::filesystem;

namespace {

constexpr FileFormat kTextFormat{
    .name = "text", .option = "text", .extensions = ".txt .text .md", .mode = std::nullopt};

constexpr std::array kFileFormats = {&kTextFormat, &kJsonLinesFormat, &kJsonArrayFormat, &kCsvFormat,
                                     &kTsvFormat,  &kMdsFormat,       &kArrowFormat};

}  // namespace

constexpr FileFormat kJsonLinesFormat{
    .name = "jsonl", .option = "jsonl", .extensions = ".jsonl .ndjson", .read = read_json_lines};
constexpr FileFormat kJsonArrayFormat{.name = "json",
                                      .option = "jsonl",
                                      .extensions = ".json",
                                      .is_searched = false,
                                      .mode = DocumentMode::file,
                                      .read = read_json_array};

FolderIndex::FolderIndex(fs::path file) : file_(std::move(file)), hash_(file_hash(file_)) {}

bool TextFile::is_sequential() const {
  return format->is_table() || is_compressed_name(path);
}

bool FileFormat::names(const fs::path& file) const {
  const std::string extension = lower_extension(unpacked_name(file));
  return !extension.empty() && has_word(extensions, extension) && !(seeks && is_compressed_name(file));
}

std::string FileFormat::place_of(const fs::path& file, int64_t number) const {
  if (is_table()) return format("{}: row {}", file.string(), number);
  return format(mode == DocumentMode::file ? "{}: record {}" : "{}:{}", file.string(), number);
}

bool has_name_of_records(const fs::path& file) {
  return std::ranges::any_of(kFileFormats,
                             [&](const FileFormat* row) { return row->read != nullptr && row->names(file); });
}

std::vector<const FileFormat*> formats_of(std::string_view option) {
  std::vector<const FileFormat*> found;
  std::vector<std::string> words = {"\"auto\""};
  for (const FileFormat* row : kFileFormats) {
    if (option == "auto" || (option == "records" && row->read != nullptr) ||
        (!option.empty() && option == row->option))
      found.push_back(row);
    if (std::string word = format("\"{}\"", row->option); !row->option.empty() && words.back() != word)
      words.push_back(std::move(word));
  }
  words.emplace_back("\"records\"");
  if (found.empty())
    throw UsageError(format("\"{}\" is not a text format; expected {}", option, alternatives(words)));
  return found;
}

std::string alternatives(const std::vector<std::string>& words) {
  const std::vector<std::string> first(words.begin(), words.end() - 1);
  return first.empty() ? words.back() : join(first, ", ") + " or " + words.back();
}

std::unique_ptr<ContentReader> open_contents(const TextFile& file, const std::optional<std::string>& column) {
  return file.format->is_table() ? file.format->open(file, column) : open_bytes(file.path);
}

}  // namespace stepforge
