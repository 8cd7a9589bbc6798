// SPDX-License-Identifier: Apache-2.0
// Counts the words of texts on all cores.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>

#include "stepforge/text/splitter.h"

namespace stepforge {

using WordCounts = std::unordered_map<std::string, int64_t>;

/// Splits texts into words and counts them. The result does not depend on the number of threads.
class WordCounter {
 public:
  /// `workers` threads, 0 = all cores. Throws FormatError if the pattern is not supported.
  explicit WordCounter(std::string_view pattern = kLlama3Pattern, int workers = 0);

  /// Counts the words of one text; "<|endoftext|>" in it separates texts and is not counted. Large texts are
  /// divided between the threads, where the pattern splits in any case. Words of over 256 bytes are counted
  /// in parts. Throws FormatError naming `source` if the text is not UTF-8.
  void add(std::string_view text, std::string_view source);

  const WordCounts& counts() const { return counts_; }
  int64_t bytes() const { return bytes_; }

 private:
  SplitPattern pattern_;
  int workers_;
  WordCounts counts_;
  int64_t bytes_ = 0;
};

}  // namespace stepforge
