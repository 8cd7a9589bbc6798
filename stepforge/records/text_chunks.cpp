// SPDX-License-Identifier: Apache-2.0
#include "stepforge/records/text_chunks.h"

#include <algorithm>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"

namespace stepforge {

namespace {

/// Larger files that are one document are refused: it is held in memory whole.
constexpr int64_t kMaxFileBytes = int64_t{4} << 30;
/// The same of unpacked ones: a small file can become a large one.
constexpr int64_t kMaxUnpackedBytes = int64_t{256} << 20;

[[noreturn]] void refuse_file(const ChunkedFile& file, int64_t limit) {
  throw FormatError(
      format("{}: it has more than {} and is one document; set the document to \"line\" or \"paragraph\", "
             "or write a JSON array as JSON Lines",
             file.file.path.string(), human_bytes(limit)));
}

[[noreturn]] void refuse_part(const ChunkedFile& file, int64_t line) {
  throw FormatError(format(
      "{}: line {} is {} of more than {}, which is refused; divide it", file.file.path.string(), line,
      file.mode == DocumentMode::line ? "a document" : "in a paragraph", human_bytes(kMaxRecordBytes)));
}

int64_t lines_in(std::string_view text) {
  return std::count(text.begin(), text.end(), '\n');
}

/// Ranges of a file that can be read from anywhere.
class PlainChunks : public TextChunks {
 public:
  PlainChunks(const ChunkedFile& file, int64_t target_bytes, int64_t begin)
      : file_(file), reader_(file.file.path), target_bytes_(target_bytes), begin_(begin) {}

  std::optional<TextChunk> next() override {
    const int64_t size = file_.file.bytes;
    if (begin_ >= size) return std::nullopt;
    const int64_t wanted = std::min(target_bytes_, size - begin_);
    const bool is_whole = file_.mode == DocumentMode::file;
    if (is_whole && size > kMaxFileBytes) refuse_file(file_, kMaxFileBytes);
    const int64_t end = is_whole ? size : boundary_after(begin_ + wanted);
    return TextChunk{file_.number, std::exchange(begin_, end), end, end};
  }

 private:
  /// The first document boundary at or after byte `from`: just after the next line break or blank line, or the end.
  int64_t boundary_after(int64_t from) const {
    const bool by_line = file_.mode == DocumentMode::line;
    for (int64_t window = int64_t{1} << 16;; window *= 2) {
      const int64_t begin = by_line ? from - 1 : from;
      const int64_t end = std::min(file_.file.bytes, begin + window);
      const std::string text = reader_.text(begin, end);
      const size_t boundary = by_line ? text.find('\n') + 1 : after_blank_line(text, 0);
      // A boundary at the end of the window is not necessarily one of the file.
      if (boundary > 0 && boundary < text.size()) return begin + static_cast<int64_t>(boundary);
      if (end == file_.file.bytes) return end;
      if (window >= kMaxRecordBytes) refuse_part(file_, lines_before(begin) + 1);
    }
  }

  int64_t lines_before(int64_t end) const {
    constexpr int64_t kBlock = int64_t{1} << 20;
    int64_t lines = 0;
    for (int64_t at = 0; at < end; at += kBlock)
      lines += lines_in(reader_.text(at, std::min(end, at + kBlock)));
    return lines;
  }

  ChunkedFile file_;
  FileReader reader_;
  int64_t target_bytes_;
  int64_t begin_;
};

/// Pieces of what a ContentReader reads: from the beginning of the file, even if the first chunk begins later.
class SequentialChunks : public TextChunks {
 public:
  SequentialChunks(const ChunkedFile& file, int64_t target_bytes, int64_t begin)
      : file_(file),
        input_(open_contents(file.file, file.column)),
        target_bytes_(target_bytes),
        skip_(begin),
        begin_(begin) {}

  std::optional<TextChunk> next() override {
    skip_contents();
    size_t end = boundary();
    while (end == 0 && !ended_) {
      read_more();
      end = boundary();
    }
    if (end == 0) end = rest_.size();
    if (end == 0) return std::nullopt;
    TextChunk chunk{file_.number, begin_, begin_ + static_cast<int64_t>(end), input_->position()};
    std::string after = rest_.substr(end);
    rest_.resize(end);
    lines_ += lines_in(rest_);
    chunk.text = std::make_shared<const std::string>(std::move(rest_));
    rest_ = std::move(after);
    begin_ = chunk.end;
    return chunk;
  }

 private:
  void skip_contents() {
    std::string lost;
    while (skip_ > 0) {
      lost.resize(static_cast<size_t>(std::min<int64_t>(skip_, 1 << 20)));
      const int64_t count = input_->read(lost);
      if (count == 0) throw FormatError(format("{} has become shorter", file_.file.path.string()));
      lines_ += lines_in(std::string_view(lost).substr(0, static_cast<size_t>(count)));
      skip_ -= count;
    }
  }

  void read_more() {
    const auto target = static_cast<size_t>(target_bytes_);
    const bool is_whole = file_.mode == DocumentMode::file;
    // Records are parsed whole.
    const int64_t limit_of_whole = file_.file.format->read != nullptr ? kMaxRecordBytes : kMaxUnpackedBytes;
    const auto limit = static_cast<size_t>(is_whole ? limit_of_whole : kMaxRecordBytes + target_bytes_);
    const size_t held = rest_.size();
    if (held > limit) {
      if (is_whole) refuse_file(file_, limit_of_whole);
      refuse_part(file_, lines_ + lines_in(std::string_view(rest_).substr(0, target)) + 1);
    }
    // Doubled, so that a long document is not searched again for every piece; no more than shows that it is too long.
    const size_t more = std::min(std::max(target, held), limit + 1 - held);
    rest_.resize(held + more);
    const int64_t count = input_->read(std::span(rest_).subspan(held));
    rest_.resize(held + static_cast<size_t>(count));
    ended_ = count < static_cast<int64_t>(more);
  }

  /// The first document boundary after about target_bytes_ of `rest_`; 0 if more has to be read to find it.
  size_t boundary() const {
    const auto target = static_cast<size_t>(target_bytes_);
    if (file_.mode == DocumentMode::file || rest_.size() <= target) return 0;
    const size_t found =
        file_.mode == DocumentMode::line ? rest_.find('\n', target - 1) + 1 : after_blank_line(rest_, target);
    return found < rest_.size() ? found : 0;
  }

  ChunkedFile file_;
  std::unique_ptr<ContentReader> input_;
  int64_t target_bytes_;
  int64_t skip_;       ///< contents before the first chunk
  int64_t begin_;      ///< of `rest_` in the contents
  int64_t lines_ = 0;  ///< before `rest_`
  std::string rest_;
  bool ended_ = false;
};

}  // namespace

bool is_blank(std::string_view text) {
  return text.find_first_not_of(" \t\r\n\v\f") == std::string_view::npos;
}

size_t after_blank_line(std::string_view text, size_t from) {
  size_t line_feed = text.find('\n', from);
  while (line_feed != std::string_view::npos) {
    const size_t end = std::min(text.size(), text.find('\n', line_feed + 1));
    if (is_blank(text.substr(line_feed + 1, end - line_feed - 1))) return std::min(end + 1, text.size());
    line_feed = text.find('\n', end);
  }
  return text.size();
}

std::unique_ptr<TextChunks> open_text_chunks(const ChunkedFile& file, int64_t target_bytes, int64_t begin) {
  if (file.file.is_sequential()) return std::make_unique<SequentialChunks>(file, target_bytes, begin);
  return std::make_unique<PlainChunks>(file, target_bytes, begin);
}

}  // namespace stepforge
