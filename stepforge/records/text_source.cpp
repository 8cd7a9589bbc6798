// SPDX-License-Identifier: Apache-2.0
#include "stepforge/records/text_source.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/base/threads.h"
#include "stepforge/base/utf8.h"

namespace stepforge {

namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
/// Threads share the hashing of a large file.
constexpr int64_t kHashedPieceBytes = int64_t{16} << 20;

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

}  // namespace

std::string document_mode_name(DocumentMode mode) {
  constexpr std::array kNames = {"file", "line", "paragraph"};
  return kNames.at(static_cast<size_t>(mode));
}

DocumentMode parse_document_mode(std::string_view word) {
  for (const DocumentMode mode : {DocumentMode::file, DocumentMode::line, DocumentMode::paragraph})
    if (word == document_mode_name(mode)) return mode;
  throw UsageError(
      format("\"{}\" is not a document mode; expected \"file\", \"line\" or \"paragraph\"", word));
}

namespace {

/// The name of the encoding, for iconv, if every second or fourth byte of much of the text is NUL; else null. Such text is valid
/// UTF-8.
const char* wide_encoding(std::string_view text) {
  constexpr size_t kLooked = 4096;
  text = text.substr(0, std::min(kLooked, text.size() / 4 * 4));
  std::array<size_t, 4> nuls{};  // by the place in four bytes
  for (size_t i = 0; i < text.size(); ++i) nuls[i % 4] += text[i] == '\0' ? 1 : 0;
  const size_t many = std::max<size_t>(2, text.size() / 16);  // a quarter of the bytes at one place
  const auto has_many = [&](size_t place) { return nuls[place] >= many; };
  if (has_many(2) && has_many(3) && !has_many(0)) return "UTF-32LE";
  if (has_many(0) && has_many(1) && !has_many(3)) return "UTF-32BE";
  if (has_many(1) && has_many(3) && !has_many(0)) return "UTF-16LE";
  if (has_many(0) && has_many(2) && !has_many(1)) return "UTF-16BE";
  return nullptr;
}

}  // namespace

TextSource::TextSource(TextSourceOptions options) : options_(std::move(options)) {
  if (options_.paths.empty()) throw UsageError("no text source is given: name a file or a folder");
  found_ = find_text_files(options_.paths, options_.format);
  if (total_bytes() == 0) throw UsageError(format("{} is empty", description()));
}

std::string TextSource::description() const {
  std::vector<std::string> names;
  names.reserve(options_.paths.size());
  for (const auto& path : options_.paths) names.push_back(path.string());
  return join(names, ", ");
}

std::vector<std::string> TextSource::file_hashes(int workers) const {
  struct Piece {
    size_t file = 0;
    int64_t begin = 0;
    int64_t end = 0;
    std::string hash{};
  };
  std::vector<Piece> pieces;
  for (size_t i = 0; i < files().size(); ++i) {
    const int64_t bytes = files()[i].bytes;
    for (int64_t begin = 0; begin == 0 || begin < bytes; begin += kHashedPieceBytes)
      pieces.push_back({i, begin, std::min(bytes, begin + kHashedPieceBytes)});
  }
  parallel_for_each(std::ssize(pieces), workers, [&](int64_t i) {
    Piece& piece = pieces[static_cast<size_t>(i)];
    piece.hash = range_hash(FileReader(files()[piece.file].path), piece.begin, piece.end);
  });
  std::vector<std::string> hashes(files().size());
  for (const Piece& piece : pieces) hashes[piece.file] += piece.hash;
  for (size_t i = 0; i < hashes.size(); ++i)
    if (files()[i].bytes > kHashedPieceBytes) hashes[i] = content_hash(hashes[i]);
  return hashes;
}

std::string TextSource::content_key(const std::vector<std::string>& hashes) const {
  std::string parts = format("{}\n{}", document_mode_name(options_.mode), options_.field.value_or(""));
  for (size_t i = 0; i < files().size(); ++i) {
    const TextFile& file = files()[i];
    parts += format("\n{}:{}{}", file.format->name, file.index ? file.index->hash() + ":" : "", hashes[i]);
  }
  return content_hash(parts);
}

std::unique_ptr<TextChunks> TextSource::chunks(size_t file, int64_t target_bytes, int64_t begin) const {
  const TextFile& entry = files().at(file);
  return open_text_chunks({entry, file, entry.format->mode.value_or(options_.mode), options_.field},
                          target_bytes, begin);
}

int64_t TextSource::lines_before(const TextChunk& chunk) const {
  if (chunk.begin == 0) return 0;
  constexpr int64_t kBlockBytes = int64_t{1} << 20;
  const auto before = chunks(chunk.file, kBlockBytes);
  int64_t lines = 0;
  std::string buffer;
  for (auto block = before->next(); block && block->begin < chunk.begin; block = before->next()) {
    const std::string_view text = contents_of(*block, buffer);
    const auto wanted = std::min(std::ssize(text), chunk.begin - block->begin);
    lines += std::count(text.begin(), text.begin() + wanted, '\n');
  }
  return lines;
}

std::string TextSource::location(const TextChunk& chunk, int64_t line) const {
  const TextFile& entry = files().at(chunk.file);
  return entry.format->place_of(entry.path, lines_before(chunk) + line);
}

/// Those of a plain file are read into `buffer`.
std::string_view TextSource::contents_of(const TextChunk& chunk, std::string& buffer) const {
  if (chunk.text) return *chunk.text;
  buffer = FileReader(files().at(chunk.file).path).text(chunk.begin, chunk.end);
  return buffer;
}

void TextSource::require_all_utf8(const TextChunk& chunk, std::string_view text) const {
  const TextFile& entry = files().at(chunk.file);
  if (!entry.format->is_table()) {
    require_utf8(text, entry.path.string(), static_cast<size_t>(chunk.end) - text.size());
  } else if (const size_t invalid = find_invalid_utf8(text); invalid != std::string_view::npos) {
    const auto before = text.substr(0, invalid);
    throw FormatError(
        format("{}: it is not valid UTF-8; convert the text, for example with iconv -f latin1 -t utf-8",
               location(chunk, std::count(before.begin(), before.end(), '\n') + 1)));
  }
}

void TextSource::read(const TextChunk& chunk, const std::function<void(std::string_view)>& document,
                      const FaultHandler& on_fault) const {
  const TextFile& entry = files().at(chunk.file);
  std::string buffer;
  std::string_view text = contents_of(chunk, buffer);
  if (chunk.begin == 0 && text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  const int64_t begin = chunk.end - std::ssize(text);
  if (const char* encoding = entry.format->is_table() ? nullptr : wide_encoding(text)) {
    const auto message = [&] {
      return format(
          "{}: from byte {} on many bytes are NUL, as in {} without a mark; convert it: iconv -f {} -t UTF-8",
          entry.path.string(), begin, encoding, encoding);
    };
    if (!on_fault) throw FormatError(message());
    return on_fault(message);
  }
  // Parsing JSON checks that it is UTF-8; then only the message is to be found.
  const bool is_parsed = entry.format->read != nullptr && options_.field.has_value();
  if (!on_fault && !is_parsed) require_all_utf8(chunk, text);
  const auto keep = [&](std::string_view content) {
    if (!is_blank(content)) document(content);
  };
  try {
    if (entry.format->read != nullptr) {
      const auto record = [&](int64_t number) { return location(chunk, number); };
      entry.format->read(text, options_.field, record, keep, on_fault);
    } else {
      read_text(entry, begin, text, keep, on_fault);
    }
  } catch (const FormatError&) {
    if (!on_fault) require_all_utf8(chunk, text);
    throw;
  }
}

/// `begin`: of the text in the file.
void TextSource::read_text(const TextFile& file, int64_t begin, std::string_view text,
                           const std::function<void(std::string_view)>& document,
                           const FaultHandler& on_fault) const {
  const std::string name = file.path.string();
  const auto deliver = [&](std::string_view content) {
    const auto offset = static_cast<size_t>(begin + (content.data() - text.data()));
    try {
      if (on_fault) require_utf8(content, name, offset);
    } catch (const FormatError& fault) {
      on_fault([&] { return std::string(fault.what()); });
      return;
    }
    try {
      document(content);
    } catch (const FormatError& fault) {
      const auto message = [&] {
        return format("{}: the document at byte {}: {}", name, offset, fault.what());
      };
      if (!on_fault) throw FormatError(message());
      on_fault(message);
    }
  };
  if (options_.mode == DocumentMode::file) {
    deliver(text);
  } else if (options_.mode == DocumentMode::line) {
    read_lines(text, deliver);
  } else {
    read_paragraphs(text, deliver);
  }
}

}  // namespace stepforge
