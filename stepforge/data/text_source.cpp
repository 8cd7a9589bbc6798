#include "stepforge/data/text_source.h"

#include <algorithm>
#include <set>
#include <system_error>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/base/threads.h"
#include "stepforge/base/utf8.h"
#include "stepforge/data/json_lines.h"

namespace stepforge {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

std::string lower_extension(const fs::path& path) {
  std::string extension = path.extension().string();
  std::transform(extension.begin(), extension.end(), extension.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return extension;
}

bool is_plain_text_name(const fs::path& path) {
  const std::string extension = lower_extension(path);
  return extension == ".txt" || extension == ".text" || extension == ".md";
}

bool is_json_lines_name(const fs::path& path) {
  const std::string extension = lower_extension(path);
  return extension == ".jsonl" || extension == ".ndjson";
}

bool is_blank(std::string_view text) {
  return text.find_first_not_of(" \t\r\n\v\f") == std::string_view::npos;
}

/// The line that begins at `begin`, without its end of line.
std::string_view line_at(std::string_view text, size_t begin) {
  return text.substr(begin, text.find('\n', begin) - begin);
}

std::string_view without_carriage_return(std::string_view line) {
  return line.ends_with('\r') ? line.substr(0, line.size() - 1) : line;
}

/// The end of the paragraph that contains `from`: just behind the next blank line, or the end of the text.
size_t behind_blank_line(std::string_view text, size_t from) {
  size_t line_feed = text.find('\n', from);
  while (line_feed != std::string_view::npos) {
    const auto line = line_at(text, line_feed + 1);
    const size_t end = line_feed + 1 + line.size();
    if (is_blank(line)) return std::min(end + 1, text.size());
    line_feed = text.find('\n', end);
  }
  return text.size();
}

void read_lines(std::string_view text, const std::function<void(std::string_view)>& document) {
  for (size_t begin = 0; begin < text.size();) {
    const auto line = line_at(text, begin);
    begin += line.size() + 1;
    if (!is_blank(line)) document(without_carriage_return(line));
  }
}

void read_paragraphs(std::string_view text, const std::function<void(std::string_view)>& document) {
  size_t first = 0;  // of the paragraph
  size_t last = 0;   // its end; nothing gathered if equal
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

}  // namespace

DocumentMode parse_document_mode(std::string_view word) {
  if (word == "file") return DocumentMode::file;
  if (word == "line") return DocumentMode::line;
  if (word == "paragraph") return DocumentMode::paragraph;
  throw UsageError(
      format("\"{}\" is no document mode; a document is a \"file\", a \"line\" or a \"paragraph\"", word));
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
  throw UsageError(format("\"{}\" is no text format; it is \"auto\", \"text\" or \"jsonl\"", word));
}

TextSource::TextSource(TextSourceOptions options) : options_(std::move(options)) {
  if (options_.paths.empty()) throw UsageError("no text was named: give a file or a folder");
  for (const auto& path : options_.paths) add_path(path);
  if (total_bytes_ == 0) throw UsageError(format("{} is empty: there is nothing to train on", description()));
}

std::string TextSource::description() const {
  std::vector<std::string> names;
  names.reserve(options_.paths.size());
  for (const auto& path : options_.paths) names.push_back(path.string());
  return join(names, ", ");
}

bool TextSource::is_json_lines(const fs::path& path) const {
  if (options_.format != TextFormat::automatic) return options_.format == TextFormat::json_lines;
  return is_json_lines_name(path) || lower_extension(path) == ".json";
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
  std::set<std::string> others;
  for (fs::recursive_directory_iterator entry(folder, failure), end; !failure && entry != end;
       entry.increment(failure)) {
    const fs::path& path = entry->path();
    if (path.filename().string().starts_with('.')) {
      if (entry->is_directory()) entry.disable_recursion_pending();
      continue;
    }
    if (!entry->is_regular_file()) continue;
    const bool wanted = (options_.format != TextFormat::json_lines && is_plain_text_name(path)) ||
                        (options_.format != TextFormat::text && is_json_lines_name(path));
    if (wanted) {
      found.push_back(path);
    } else {
      others.insert(path.extension().empty() ? path.filename().string() : "*" + path.extension().string());
    }
  }
  if (failure) throw Error(format("cannot read the folder {}: {}", folder.string(), failure.message()));
  if (found.empty()) {
    const std::vector<std::string> kinds(others.begin(), others.end());
    throw UsageError(
        format("the folder {} holds no *.txt, *.text, *.md, *.jsonl or *.ndjson{}", folder.string(),
               kinds.empty() ? std::string(": it is empty") : format(", only {}", join(kinds, ", "))));
  }
  std::sort(found.begin(), found.end());
  for (const auto& path : found) add_file(path);
}

void TextSource::add_file(const fs::path& path) {
  const MappedFile file(path);  // says now what could not be read later
  const auto bytes = static_cast<int64_t>(file.text().size());
  files_.push_back({path, is_json_lines(path), bytes});
  total_bytes_ += bytes;
}

std::string TextSource::content_key(int workers) const {
  std::vector<std::string> hashes(files_.size());
  parallel_for_each(static_cast<int64_t>(files_.size()), workers, [&](int64_t i) {
    const auto& file = files_[static_cast<size_t>(i)];
    hashes[static_cast<size_t>(i)] = (file.json_lines ? "jsonl:" : "text:") + file_hash(file.path);
  });
  return content_hash(
      format("{}\n{}\n{}", document_mode_name(options_.mode), options_.field, join(hashes, "\n")));
}

std::vector<TextChunk> TextSource::chunks(size_t file, int64_t target_bytes) const {
  const TextFile& entry = files_.at(file);
  if (entry.bytes == 0) return {};
  if (!entry.json_lines && options_.mode == DocumentMode::file) return {{file, 0, entry.bytes}};
  const MappedFile mapped(entry.path);
  const auto text = mapped.text();
  const bool by_line = entry.json_lines || options_.mode == DocumentMode::line;
  std::vector<TextChunk> ranges;
  for (size_t begin = 0; begin < text.size();) {
    size_t end = std::min(text.size(), begin + static_cast<size_t>(target_bytes));
    if (end < text.size())
      end = by_line ? std::min(text.size(), text.find('\n', end - 1)) : behind_blank_line(text, end);
    if (by_line && end < text.size()) ++end;
    ranges.push_back({file, static_cast<int64_t>(begin), static_cast<int64_t>(end)});
    begin = end;
  }
  return ranges;
}

void TextSource::read(const TextChunk& chunk, const std::function<void(std::string_view)>& document) const {
  const TextFile& entry = files_.at(chunk.file);
  const MappedFile mapped(entry.path);
  if (chunk.end > static_cast<int64_t>(mapped.text().size())) {
    throw Error(format("{} became shorter while it was read", entry.path.string()));
  }
  int64_t begin = chunk.begin;
  if (begin == 0 && mapped.text().starts_with(kByteOrderMark))
    begin += static_cast<int64_t>(kByteOrderMark.size());
  const auto text = mapped.text().substr(static_cast<size_t>(begin), static_cast<size_t>(chunk.end - begin));
  require_utf8(text, entry.path.string(), static_cast<size_t>(begin));
  const auto keep = [&](std::string_view content) {
    if (!is_blank(content)) document(content);
  };
  if (entry.json_lines) {
    read_json_lines(mapped.text(), begin, chunk.end, options_.field, entry.path.string(), keep);
  } else if (options_.mode == DocumentMode::file) {
    keep(text);
  } else if (options_.mode == DocumentMode::line) {
    read_lines(text, document);
  } else {
    read_paragraphs(text, document);
  }
}

}  // namespace stepforge
