// SPDX-License-Identifier: Apache-2.0
// Counts the words of texts on all cores.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "stepforge/text/added_tokens.h"
#include "stepforge/text/pre_tokenizer.h"
#include "stepforge/text/tokenizer_json.h"

namespace stepforge {

using WordCounts = std::unordered_map<std::string, int64_t>;

struct WordCounterOptions {
  WordSplit split = {};
  /// Besides "<|endoftext|>".
  std::vector<std::string> special_tokens = {};
  /// Threads, 0 = all cores.
  int workers = 0;
};

/// Splits texts into words and counts them. The result does not depend on the number of threads.
class WordCounter {
 public:
  /// Throws FormatError if the pattern is not supported.
  explicit WordCounter(const WordCounterOptions& options = {});
  WordCounter(const WordCounter&) = delete;
  WordCounter& operator=(const WordCounter&) = delete;

  /// Counts the words of one text; "<|endoftext|>" and special tokens in it separate texts and are not counted. Large
  /// texts are divided between the threads, where a known pattern splits in any case. Throws FormatError naming
  /// `source` if the text is not UTF-8.
  void add(std::string_view text, std::string_view source);

  const WordCounts& counts() const { return counts_; }
  int64_t bytes() const { return bytes_; }

 private:
  std::vector<std::string_view> slices(std::string_view text) const;

  PreTokenizer splitter_;
  bool has_known_pattern_;
  std::vector<AddedToken> separators_;
  AddedTokenFinder finder_;
  int workers_;
  WordCounts counts_;
  int64_t bytes_ = 0;
};

}  // namespace stepforge
