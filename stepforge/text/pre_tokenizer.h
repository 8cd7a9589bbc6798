// SPDX-License-Identifier: Apache-2.0
// Pre-tokenizers of tokenizer.json: they split a text into the words that the model encodes one by one.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/base/json_reader.h"
#include "stepforge/text/cut.h"
#include "stepforge/text/metaspace.h"

namespace stepforge {

/// Immutable; may be shared between threads.
class PreTokenizer {
 public:
  /// The whole text is one word.
  PreTokenizer() = default;

  /// Reads Split, ByteLevel, Digits, Metaspace, Punctuation, Whitespace, WhitespaceSplit, BertPreTokenizer,
  /// CharDelimiterSplit, FixedLength, UnicodeScripts and Sequence. Throws FormatError naming file and component for others.
  explicit PreTokenizer(const JsonReader& pre_tokenizer);

  /// The last step writes bytes in the byte alphabet, and no other does.
  bool ends_in_bytes() const;

  /// From now on split() leaves out the last step, so that words are pieces of the text itself.
  void leave_bytes_to_model() { --used_; }

  /// Splits `text` into words. Calls `words` with texts and the ends of the first words in them, in order: the words follow
  /// each other from the start of the text, which is a view of `text` or of memory that lives during the call. `head`: how
  /// many bytes of `text` come from the first character of the whole input.
  template <typename Words>
  void split(std::string_view text, size_t head, SplitPattern::Scratch& scratch, const Words& words) const {
    run(0, text, head, scratch, words);
  }

 private:
  struct Step {
    enum class Kind { cut, prefix_space, metaspace, byte_alphabet };
    Kind kind = Kind::cut;
    std::optional<Cut> cut = {};
    std::string replacement = {};  ///< of metaspace
    Metaspace::Prepend prepend = Metaspace::Prepend::never;
  };

  /// A text and its head.
  struct Changed {
    std::string text;
    size_t head = 0;
  };

  template <typename Words>
  void run(size_t stage, std::string_view text, size_t head, SplitPattern::Scratch& scratch,
           const Words& words) const {
    if (stage == used_) {
      const size_t end = text.size();
      return words(text, std::span(&end, end > 0 ? 1 : 0));
    }
    const Step& step = steps_[stage];
    if (step.kind != Step::Kind::cut) {
      const std::optional<Changed> changed = change(step, text, head);
      return changed ? run(stage + 1, changed->text, changed->head, scratch, words)
                     : run(stage + 1, text, head, scratch, words);
    }
    const auto head_at = [head](size_t begin) { return head > begin ? head - begin : 0; };
    if (const SplitPattern* pattern = step.cut->isolating_pattern()) {
      if (stage + 1 == used_) return pattern->for_each_pieces(text, scratch, words);
      return pattern->for_each_pieces(
          text, scratch, [&](std::string_view rest, std::span<const size_t> ends) {
            size_t begin = 0;
            for (const size_t end : ends) {
              const auto offset = static_cast<size_t>(rest.data() - text.data()) + begin;
              run(stage + 1, rest.substr(begin, end - begin), head_at(offset), scratch, words);
              begin = end;
            }
          });
    }
    for (const std::string_view piece : step.cut->pieces(text, scratch))
      run(stage + 1, piece, head_at(static_cast<size_t>(piece.data() - text.data())), scratch, words);
  }

  std::optional<Changed> change(const Step& step, std::string_view text, size_t head) const;
  void read(const JsonReader& step);
  void read_byte_level(const JsonReader& step);
  void read_metaspace(const Metaspace& metaspace);
  void add(Step step);
  void add(Cut cut) { add(Step{.cut = std::move(cut)}); }

  std::vector<Step> steps_;
  size_t used_ = 0;  ///< how many of the steps split() takes
};

}  // namespace stepforge
