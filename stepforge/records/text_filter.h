// SPDX-License-Identifier: Apache-2.0
// Quality rules that decide which documents are used, in any language. They follow those of Gopher (Rae et al., "Scaling
// language models", 2021, appendix A.1: number of words, mean length of words, share of symbols, repeated lines) and of
// C4 (Raffel et al., "Exploring the limits of transfer learning", 2020, section 2.2: forbidden words and
// patterns), without their lists of English words.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/base/json.h"
#include "stepforge/text/splitter.h"

namespace stepforge {

/// The defaults keep everything. A word is a run of characters without white space; a line is what stands between
/// line feeds, and blank ones do not count. Characters are Unicode code points.
struct TextFilterRules {
  int64_t min_bytes = 0;
  int64_t max_bytes = 0;  ///< 0: any
  int64_t min_words = 0;
  int64_t max_words = 0;     ///< 0: any
  double max_symbols = 1.0;  ///< characters that are no letter, mark, number or white space / characters
  double min_mean_word_length = 0.0;  ///< in characters
  double max_mean_word_length = 0.0;  ///< in characters; 0: any
  double max_repeated_lines = 1.0;    ///< lines that occurred before in the document / lines
  std::vector<std::string>
      include{};  ///< regular expressions of PCRE2; one of them must match a part of the text
  std::vector<std::string> exclude{};  ///< none of them may match

  friend bool operator==(const TextFilterRules&, const TextFilterRules&) = default;
};

/// Immutable; may be shared between threads.
class TextFilter {
 public:
  /// Throws UsageError if a regular expression does not compile, or a minimum is above its maximum.
  explicit TextFilter(TextFilterRules rules = {});

  /// One thread's working memory.
  struct Scratch {
    SplitPattern::Scratch matching;
    std::vector<uint64_t> lines;
  };

  /// The name of the first rule, in the order of TextFilterRules, that the text breaks; "" if it is kept. `text` must be
  /// valid UTF-8. Throws Error if a regular expression takes too many steps.
  std::string_view broken_rule(std::string_view text, Scratch& scratch) const;

  /// The rules that are set, as an object of name and value.
  Json description() const;

 private:
  std::string_view broken_count(std::string_view text) const;
  bool repeats_lines(std::string_view text, Scratch& scratch) const;
  bool has_match(const std::vector<SplitPattern>& patterns, std::string_view text, Scratch& scratch) const;

  TextFilterRules rules_;
  bool counts_characters_ = false;
  std::vector<SplitPattern> include_;
  std::vector<SplitPattern> exclude_;
};

}  // namespace stepforge
