// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/word_counts.h"

#include <algorithm>
#include <mutex>
#include <vector>

#include "stepforge/base/threads.h"
#include "stepforge/base/utf8.h"
#include "stepforge/text/tokenizer.h"

namespace stepforge {

namespace {

constexpr size_t kSliceBytes = size_t{1} << 20;
// A merge visits every word that contains the pair: very long words (a line of base64) would make training
// quadratic.
constexpr size_t kMaxCountedBytes = 256;

bool is_visible_ascii(char c) {
  return c > ' ' && c < 0x7F;
}

/// The end of the slice that begins at `begin`: after the first line feed past kSliceBytes that is followed
/// by a visible ASCII character. None of our patterns matches across such a point.
size_t slice_end(std::string_view text, size_t begin) {
  if (text.size() - begin <= kSliceBytes) return text.size();
  size_t end = text.find('\n', begin + kSliceBytes);
  while (end != std::string_view::npos && end + 1 < text.size() && !is_visible_ascii(text[end + 1])) {
    end = text.find('\n', end + 1);
  }
  return end == std::string_view::npos ? text.size() : end + 1;
}

std::vector<std::string_view> make_slices(std::string_view text) {
  std::vector<std::string_view> slices;
  while (!text.empty()) {
    const size_t separator = text.find(kEndOfText);
    const std::string_view document = text.substr(0, separator);
    for (size_t begin = 0; begin < document.size();) {
      const size_t end = slice_end(document, begin);
      slices.push_back(document.substr(begin, end - begin));
      begin = end;
    }
    text.remove_prefix(separator == std::string_view::npos ? text.size() : separator + kEndOfText.size());
  }
  return slices;
}

/// The first part of a word: at most kMaxCountedBytes bytes, cut between characters.
size_t part_length(std::string_view word) {
  if (word.size() <= kMaxCountedBytes) return word.size();
  size_t length = kMaxCountedBytes;
  while ((static_cast<unsigned char>(word[length]) & 0xC0) == 0x80) --length;
  return length;
}

}  // namespace

WordCounter::WordCounter(std::string_view pattern, int workers)
    : pattern_(pattern, "pattern of the BPE trainer"), workers_(workers) {}

void WordCounter::add(std::string_view text, std::string_view source) {
  require_utf8(text, source);
  bytes_ += static_cast<int64_t>(text.size());
  const std::vector<std::string_view> slices = make_slices(text);
  std::mutex mutex;
  parallel_for_each(static_cast<int64_t>(slices.size()), workers_, [&](int64_t index) {
    const std::string_view slice = slices[static_cast<size_t>(index)];
    std::unordered_map<std::string_view, int64_t> local;
    SplitPattern::Scratch scratch;
    for (size_t begin = 0; begin < slice.size();) {
      const size_t length = pattern_.piece_length(slice, begin, scratch);
      for (std::string_view word = slice.substr(begin, length); !word.empty();) {
        const size_t part = part_length(word);
        ++local[word.substr(0, part)];
        word.remove_prefix(part);
      }
      begin += length;
    }
    const std::lock_guard lock(mutex);
    for (const auto& [word, count] : local) counts_[std::string(word)] += count;
  });
}

}  // namespace stepforge
