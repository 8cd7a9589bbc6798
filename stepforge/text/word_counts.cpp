// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/word_counts.h"

#include <algorithm>
#include <mutex>
#include <span>
#include <vector>

#include "stepforge/base/threads.h"
#include "stepforge/base/utf8.h"
#include "stepforge/text/tokenizer.h"

namespace stepforge {

namespace {

constexpr size_t kSliceBytes = size_t{1} << 20;

/// After a slash, the pattern of GPT-4o goes on.
bool begins_a_word(char c) {
  return c > ' ' && c < 0x7F && c != '/';
}

/// The end of the slice that begins at `begin`: after the first line feed past kSliceBytes between visible ASCII
/// characters. None of the known patterns matches across such a point, and none looks ahead beyond it.
size_t slice_end(std::string_view text, size_t begin) {
  if (text.size() - begin <= kSliceBytes) return text.size();
  size_t end = text.find('\n', begin + kSliceBytes);
  while (end != std::string_view::npos && end + 1 < text.size() &&
         !(begins_a_word(text[end - 1]) && begins_a_word(text[end + 1]))) {
    end = text.find('\n', end + 1);
  }
  return end == std::string_view::npos ? text.size() : end + 1;
}

std::vector<AddedToken> separators(const std::vector<std::string>& special_tokens) {
  std::vector<AddedToken> tokens;
  tokens.push_back({.content = std::string(kEndOfText)});
  for (const std::string& token : special_tokens) tokens.push_back({.content = token});
  return tokens;
}

std::vector<const AddedToken*> pointers_to(const std::vector<AddedToken>& tokens) {
  std::vector<const AddedToken*> pointers;
  for (const AddedToken& token : tokens) pointers.push_back(&token);
  return pointers;
}

/// Words of the text itself: the bytes are left to the model.
PreTokenizer make_splitter(const WordSplit& split) {
  const Json definition = pre_tokenizer_json(split);
  PreTokenizer splitter(JsonReader(definition, "pattern of the BPE trainer"));
  splitter.leave_bytes_to_model();
  return splitter;
}

}  // namespace

WordCounter::WordCounter(const WordCounterOptions& options)
    : splitter_(make_splitter(options.split)),
      has_known_pattern_(scanner_for(options.split.pattern) != nullptr ||
                         options.split.pattern == kGpt4oPattern),
      separators_(separators(options.special_tokens)),
      finder_(pointers_to(separators_)),
      workers_(options.workers) {}

/// Parts of `text` that can be split into words one by one.
std::vector<std::string_view> WordCounter::slices(std::string_view text) const {
  std::vector<std::string_view> slices;
  const auto add_document = [&](std::string_view document) {
    for (size_t begin = 0; begin < document.size();) {
      const size_t end = has_known_pattern_ ? slice_end(document, begin) : document.size();
      slices.push_back(document.substr(begin, end - begin));
      begin = end;
    }
  };
  size_t begin = 0;
  AddedTokenFinder::Search search(finder_, text);
  while (const auto found = search.next()) {
    add_document(text.substr(begin, found->begin - begin));
    begin = found->end;
  }
  add_document(text.substr(begin));
  return slices;
}

void WordCounter::add(std::string_view text, std::string_view source) {
  require_utf8(text, source);
  bytes_ += static_cast<int64_t>(text.size());
  const std::vector<std::string_view> slices = this->slices(text);
  std::mutex mutex;
  parallel_for_each(static_cast<int64_t>(slices.size()), workers_, [&](int64_t index) {
    const std::string_view slice = slices[static_cast<size_t>(index)];
    std::unordered_map<std::string_view, int64_t> local;
    SplitPattern::Scratch scratch;
    splitter_.split(slice, 0, scratch, [&](std::string_view part, std::span<const size_t> ends) {
      size_t begin = 0;
      for (const size_t end : ends) {
        ++local[part.substr(begin, end - begin)];
        begin = end;
      }
    });
    const std::lock_guard lock(mutex);
    for (const auto& [word, count] : local) counts_[std::string(word)] += count;
  });
}

}  // namespace stepforge
