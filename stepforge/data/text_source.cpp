// SPDX-License-Identifier: Apache-2.0
#include "stepforge/data/text_source.h"

#include <algorithm>
#include <array>
#include <system_error>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/base/threads.h"
#include "stepforge/base/utf8.h"
#include "stepforge/data/arrow_library.h"
#include "stepforge/data/content_reader.h"
#include "stepforge/data/decompressor.h"
#include "stepforge/data/json_lines.h"
#include "stepforge/data/table_folder.h"

namespace stepforge {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

/// The name without .gz or .zst.
fs::path unpacked_name(const fs::path& path) {
  return is_compressed_name(path) ? path.stem() : path.filename();
}

bool is_plain_text_name(const fs::path& path) {
  const std::string extension = lower_extension(unpacked_name(path));
  return extension == ".txt" || extension == ".text" || extension == ".md";
}

bool is_json_lines_name(const fs::path& path) {
  const std::string extension = lower_extension(unpacked_name(path));
  return extension == ".jsonl" || extension == ".ndjson";
}

/// The line that begins at `begin`, without its end of line.
std::string_view line_at(std::string_view text, size_t begin) {
  return text.substr(begin, text.find('\n', begin) - begin);
}

std::string_view without_carriage_return(std::string_view line) {
  return line.ends_with('\r') ? line.substr(0, line.size() - 1) : line;
}

void read_lines(std::string_view text, const std::function<void(std::string_view)>& document) {
  for (size_t begin = 0; begin < text.size();) {
    const auto line = line_at(text, begin);
    begin += line.size() + 1;
    if (!is_blank(line)) document(without_carriage_return(line));
  }
}

void read_paragraphs(std::string_view text, const std::function<void(std::string_view)>& document) {
  size_t first = 0;  // of the current paragraph
  size_t last = 0;   // its end; equal to `first` if there is no current paragraph
  for (size_t begin = 0; begin < text.size();) {
    const auto line = line_at(text, begin);
    if (!is_blank(line)) {
      if (first == last) first = begin;
      last = begin + without_carriage_return(line).size();
    } else if (first != last) {
      document(text.substr(first, last - first));
      first = last;
    }
    begin += line.size() + 1;
  }
  if (first != last) document(text.substr(first, last - first));
}

/// A file type that is recognised by its name and cannot be read as text.
struct ForeignType {
  std::string_view extension;
  bool is_text;  ///< read as plain text if the user sets that format
  std::string_view remedy;
};

constexpr std::string_view kPandas =
    "convert it to JSON Lines: python3 -c \"import pandas; pandas.{1}('{0}').to_json('{0}.jsonl', "
    "orient='records', lines=True)\"";

constexpr std::array kForeignTypes = {
    ForeignType{".bz2", false, "unpack it: bunzip2 -k {0}"},
    ForeignType{".xz", false, "unpack it: unxz -k {0}"},
    ForeignType{".zip", false, "unpack it: unzip {0}"},
    ForeignType{".csv", true, "read_csv"},
    ForeignType{".tsv", true, "read_table"},
    ForeignType{".pdf", false, "convert it to text: pdftotext {0}"},
    ForeignType{".docx", false, "convert it to text: pandoc -t plain -o {0}.txt {0}"},
    ForeignType{".epub", false, "convert it to text: pandoc -t plain -o {0}.txt {0}"},
};

/// The first characters of a file's contents.
std::string beginning_of(const fs::path& path) {
  constexpr int64_t kBytes = 4096;
  if (!is_sequential_name(path)) {
    const FileReader file(path);
    return file.text(0, std::min(kBytes, file.size()));
  }
  std::string text(kBytes, '\0');
  text.resize(static_cast<size_t>(open_contents(path)->read(text)));
  return text;
}

/// What to do about a file of a type that cannot be read, or "".
std::string remedy_for(const fs::path& path, TextFormat format) {
  if (is_arrow_name(unpacked_name(path))) {
    if (is_compressed_name(path)) return "unpack it first: it is read from places all over the file";
    return format == TextFormat::text ? "leave out the format \"text\"" : "";
  }
  const std::string extension = lower_extension(unpacked_name(path));
  for (const ForeignType& type : kForeignTypes) {
    if (type.extension != extension || (type.is_text && format == TextFormat::text)) continue;
    const bool table = type.remedy.starts_with("read_");
    return format_arguments(table ? kPandas : type.remedy, {path.native(), type.remedy});
  }
  return "";
}

}  // namespace

DocumentMode parse_document_mode(std::string_view word) {
  if (word == "file") return DocumentMode::file;
  if (word == "line") return DocumentMode::line;
  if (word == "paragraph") return DocumentMode::paragraph;
  throw UsageError(
      format("\"{}\" is not a document mode; expected \"file\", \"line\" or \"paragraph\"", word));
}

std::string document_mode_name(DocumentMode mode) {
  switch (mode) {
    case DocumentMode::file:
      return "file";
    case DocumentMode::line:
      return "line";
    case DocumentMode::paragraph:
      return "paragraph";
  }
  return "?";
}

TextFormat parse_text_format(std::string_view word) {
  if (word == "auto") return TextFormat::automatic;
  if (word == "text") return TextFormat::text;
  if (word == "jsonl") return TextFormat::json_lines;
  throw UsageError(format("\"{}\" is not a text format; expected \"auto\", \"text\" or \"jsonl\"", word));
}

TextSource::TextSource(TextSourceOptions options) : options_(std::move(options)) {
  if (options_.paths.empty()) throw UsageError("no text source is given: name a file or a folder");
  for (const auto& path : options_.paths) add_path(path);
  if (total_bytes_ == 0) throw UsageError(format("{} is empty", description()));
}

std::string TextSource::description() const {
  std::vector<std::string> names;
  names.reserve(options_.paths.size());
  for (const auto& path : options_.paths) names.push_back(path.string());
  return join(names, ", ");
}

TextFileKind TextSource::kind_of(const fs::path& path) const {
  const bool by_name = is_json_lines_name(path) || lower_extension(unpacked_name(path)) == ".json";
  const bool is_json =
      options_.format == TextFormat::automatic ? by_name : options_.format == TextFormat::json_lines;
  if (is_arrow_name(path)) return TextFileKind::json_lines;
  if (!is_json) return TextFileKind::text;
  // A line of a .jsonl file that is an array is a fault, which the reader names.
  const bool is_array = !is_json_lines_name(path) && begins_json_array(beginning_of(path));
  return is_array ? TextFileKind::json_array : TextFileKind::json_lines;
}

void TextSource::add_path(const fs::path& path) {
  std::error_code failure;
  const auto status = fs::status(path, failure);
  if (status.type() == fs::file_type::not_found) {
    throw UsageError(
        format("{} does not exist: name a text file, a JSON Lines file or a folder", path.string()));
  }
  if (failure) throw Error(format("cannot read {}: {}", path.string(), failure.message()));
  if (fs::is_directory(status)) {
    add_folder(path);
  } else {
    add_file(path);
  }
}

void TextSource::add_folder(const fs::path& folder) {
  std::error_code failure;
  std::vector<fs::path> found;
  std::vector<fs::path> tables;
  for (fs::recursive_directory_iterator entry(folder, failure), end; !failure && entry != end;
       entry.increment(failure)) {
    const fs::path& path = entry->path();
    if (path.filename().string().starts_with('.')) {
      if (entry->is_directory()) entry.disable_recursion_pending();
      continue;
    }
    if (!entry->is_regular_file()) continue;
    const bool wanted =
        (options_.format != TextFormat::json_lines && is_plain_text_name(path)) ||
        (options_.format != TextFormat::text && (is_json_lines_name(path) || is_arrow_name(path)));
    if (wanted) {
      (is_arrow_name(path) ? tables : found).push_back(path);
    } else if (!describes_data_set(path)) {
      skipped_.push_back(path);
      skipped_bytes_ += static_cast<int64_t>(entry->file_size());
    }
  }
  if (failure) throw Error(format("cannot read the folder {}: {}", folder.string(), failure.message()));
  const TableChoice choice = choose_tables(folder, tables);
  found.insert(found.end(), choice.chosen.begin(), choice.chosen.end());
  for (const fs::path& path : choice.left_out) {
    skipped_.push_back(path);
    skipped_bytes_ += file_bytes(path);
  }
  if (!choice.note.empty()) notes_.push_back(choice.note);
  if (found.empty()) {
    throw UsageError(format(
        "the folder {} contains no *.txt, *.text, *.md, *.jsonl, *.ndjson, *.parquet or *.arrow file: {}",
        folder.string(), skipped_.empty() ? "it is empty" : skipped()));
  }
  std::sort(found.begin(), found.end());
  for (const auto& path : found) add_file(path);
}

void TextSource::add_file(const fs::path& path) {
  const std::string remedy = remedy_for(path, options_.format);
  if (!remedy.empty()) throw UsageError(format("{} cannot be read as text; {}", path.string(), remedy));
  const int64_t bytes = FileReader(path).size();  // fails now if the file is unreadable
  if (is_arrow_name(path)) load_arrow_library(arrow_library_path(), path);
  files_.push_back({path, kind_of(path), bytes});
  total_bytes_ += bytes;
}

std::string TextSource::skipped() const {
  constexpr size_t kNamed = 5;
  if (skipped_.empty()) return join(notes_, "; ");
  std::vector<std::string> names;
  std::string remedy;
  for (const fs::path& path : skipped_) {
    if (names.size() < kNamed) names.push_back(path.filename().string());
    if (remedy.empty()) remedy = remedy_for(path, options_.format);
  }
  if (names.size() < skipped_.size()) names.emplace_back("...");
  std::vector<std::string> all = notes_;
  all.push_back(format("{} file{} ({}) {} not read: {}{}", skipped_.size(), skipped_.size() == 1 ? "" : "s",
                       human_bytes(skipped_bytes_), skipped_.size() == 1 ? "is" : "are", join(names, ", "),
                       remedy.empty() ? remedy : "; " + remedy));
  return join(all, "; ");
}

std::string TextSource::content_key(int workers) const {
  std::vector<std::string> hashes(files_.size());
  parallel_for_each(static_cast<int64_t>(files_.size()), workers, [&](int64_t i) {
    const auto& file = files_[static_cast<size_t>(i)];
    hashes[static_cast<size_t>(i)] =
        (file.kind == TextFileKind::text ? "text:" : "jsonl:") + file_hash(file.path);
  });
  return content_hash(format("{}\n{}\n{}", document_mode_name(options_.mode), options_.field.value_or(""),
                             join(hashes, "\n")));
}

std::unique_ptr<TextChunks> TextSource::chunks(size_t file, int64_t target_bytes, int64_t begin) const {
  const TextFile& entry = files_.at(file);
  DocumentMode mode = options_.mode;
  if (entry.kind == TextFileKind::json_lines) mode = DocumentMode::line;
  if (entry.kind == TextFileKind::json_array) mode = DocumentMode::file;
  return open_text_chunks({entry.path, entry.bytes, file, mode, options_.field}, target_bytes, begin);
}

int64_t TextSource::lines_before(const TextChunk& chunk) const {
  constexpr int64_t kBlockBytes = int64_t{1} << 20;
  const auto before = chunks(chunk.file, kBlockBytes);
  int64_t lines = 0;
  for (auto block = before->next(); block && block->begin < chunk.begin; block = before->next()) {
    const std::string text = contents_of(*block);
    const auto wanted = std::min(std::ssize(text), chunk.begin - block->begin);
    lines += std::count(text.begin(), text.begin() + wanted, '\n');
  }
  return lines;
}

std::string TextSource::contents_of(const TextChunk& chunk) const {
  return chunk.text ? *chunk.text : FileReader(files_.at(chunk.file).path).text(chunk.begin, chunk.end);
}

void TextSource::read(const TextChunk& chunk, const std::function<void(std::string_view)>& document) const {
  const TextFile& entry = files_.at(chunk.file);
  const std::string bytes = contents_of(chunk);
  std::string_view text = bytes;
  if (chunk.begin == 0 && text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  require_utf8(text, entry.path.string(), static_cast<size_t>(chunk.end) - text.size());
  const auto keep = [&](std::string_view content) {
    if (!is_blank(content)) document(content);
  };
  if (entry.kind == TextFileKind::json_array) {
    const auto location = [&](int64_t record) {
      return format("{}: record {}", entry.path.string(), record);
    };
    read_json_array(text, options_.field, location, keep);
  } else if (entry.kind == TextFileKind::json_lines) {
    const auto location = [&](int64_t line) {
      return format("{}:{}", entry.path.string(), lines_before(chunk) + line);
    };
    read_json_lines(text, options_.field, location, keep);
  } else if (options_.mode == DocumentMode::file) {
    keep(text);
  } else if (options_.mode == DocumentMode::line) {
    read_lines(text, document);
  } else {
    read_paragraphs(text, document);
  }
}

}  // namespace stepforge
