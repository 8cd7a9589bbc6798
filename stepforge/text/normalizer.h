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

namespace stepforge {

/// Immutable; may be shared between threads.
class Normalizer {
 public:
  /// Changes nothing.
  Normalizer() = default;

  /// Reads NFC, NFD, NFKC, NFKD, Lowercase, Strip, StripAccents, Replace, Prepend and Sequence. Throws
  /// FormatError naming file and component for others.
  explicit Normalizer(const JsonReader& normalizer);

  /// The normalized text: `text` itself if nothing changes, else a view of `buffer`. `text` must be UTF-8.
  /// Throws Error if the result is many times longer than the text.
  std::string_view apply(std::string_view text, std::string& buffer, SplitPattern::Scratch& scratch) const;

  /// No step removes or replaces the beginning of a text.
  bool keeps_beginning() const { return keeps_beginning_; }

 private:
  /// nullopt if the text stays as it is.
  using Step = std::function<std::optional<std::string>(std::string_view, SplitPattern::Scratch&)>;

  void read(const JsonReader& normalizer);

  std::vector<Step> steps_;
  bool keeps_beginning_ = true;
};

}  // namespace stepforge
