// SPDX-License-Identifier: Apache-2.0
// Pre-tokenizers of tokenizer.json: they split a text into the words that the model encodes one by one.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/base/json_reader.h"
#include "stepforge/text/cut.h"

namespace stepforge {

/// Immutable; may be shared between threads.
class PreTokenizer {
 public:
  /// The whole text is one word.
  PreTokenizer() = default;

  /// Reads Split, ByteLevel, Digits, Metaspace, Punctuation, Whitespace, WhitespaceSplit, BertPreTokenizer,
  /// CharDelimiterSplit and Sequence. Throws FormatError naming file and component for others.
  /// `keeps_beginning` is that of the normalizer before it.
  PreTokenizer(const JsonReader& pre_tokenizer, bool keeps_beginning);

  /// The last step writes bytes in the byte alphabet, and no other does. split() leaves this step to the model,
  /// so that words are pieces of the text itself.
  bool ends_in_bytes() const;

  /// Calls `word` with each word of `text`, in order. `first`: `text` begins where the whole input begins.
  /// Words are views of `text` or of memory that lives during the call.
  template <typename Word>
  void split(std::string_view text, bool first, SplitPattern::Scratch& scratch, const Word& word) const {
    run(0, text, first, scratch, word);
  }

 private:
  struct Step {
    enum class Kind { cut, prefix_space, metaspace, byte_alphabet };
    Kind kind = Kind::cut;
    std::optional<Cut> cut;
    std::string replacement;  ///< of metaspace
    enum class Prefix { never, first, always } prefix = Prefix::never;
  };

  template <typename Word>
  void run(size_t stage, std::string_view text, bool first, SplitPattern::Scratch& scratch,
           const Word& word) const {
    if (stage == steps_.size()) return word(text);
    const Step& step = steps_[stage];
    if (step.kind != Step::Kind::cut) {
      const std::optional<std::string> changed = change(step, text, first);
      return run(stage + 1, changed ? std::string_view(*changed) : text, first, scratch, word);
    }
    if (const SplitPattern* pattern = step.cut->isolating_pattern()) {
      for (size_t begin = 0; begin < text.size();) {
        const size_t length = pattern->piece_length(text, begin, scratch);
        run(stage + 1, text.substr(begin, length), first && begin == 0, scratch, word);
        begin += length;
      }
      return;
    }
    for (const std::string_view piece : step.cut->pieces(text, scratch))
      run(stage + 1, piece, first && piece.data() == text.data(), scratch, word);
  }

  std::optional<std::string> change(const Step& step, std::string_view text, bool first) const;
  void read(const JsonReader& step, bool keeps_beginning);
  void read_byte_level(const JsonReader& step);
  void read_metaspace(const JsonReader& step, bool keeps_beginning);
  void add(Cut cut) { steps_.push_back({.cut = std::move(cut), .replacement = {}}); }

  std::vector<Step> steps_;
};

}  // namespace stepforge
