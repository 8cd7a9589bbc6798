// SPDX-License-Identifier: Apache-2.0
// Normalizers of tokenizer.json: they change a text before it is split into words.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/base/json_reader.h"
#include "stepforge/text/splitter.h"
#include "stepforge/text/unicode_forms.h"

namespace stepforge {

/// Immutable; may be shared between threads.
class Normalizer {
 public:
  /// Changes nothing.
  Normalizer() = default;

  /// Reads NFC, NFD, NFKC, NFKD, BertNormalizer, ByteLevel, Lowercase, Nmt, Precompiled, Prepend, Replace, Strip,
  /// StripAccents and Sequence. Throws FormatError naming file and component for others.
  explicit Normalizer(const JsonReader& normalizer);

  /// The normalized text: `text` itself if nothing changes, else a view of `buffer`. `text` must be UTF-8.
  /// Throws Error if the result is many times longer than the text.
  /// `head` is how many bytes of `text` come from the first character of the whole input; it becomes that of the
  /// normalized text.
  std::string_view apply(std::string_view text, std::string& buffer, size_t& head,
                         SplitPattern::Scratch& scratch) const;

 private:
  /// nullopt if the text stays as it is.
  using Change = std::function<std::optional<std::string>(std::string_view, SplitPattern::Scratch&)>;
  /// The new head of a text: of the text before and after the change, and its old head.
  using Head = std::function<size_t(std::string_view, std::string_view, size_t, SplitPattern::Scratch&)>;
  struct Step {
    Change change;
    Head head;
  };

  void read(const JsonReader& normalizer);
  void add(std::string (*function)(std::string_view));
  void add_form(NormalForm form);
  void add_strip(bool left, bool right);
  void add_replace(SplitPattern pattern, std::string content);
  void add_prepend(std::string prefix);
  void add_bert(const JsonReader& normalizer);
  void add_precompiled(const JsonReader& charsmap);

  std::vector<Step> steps_;
};

}  // namespace stepforge
