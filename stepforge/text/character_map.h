// SPDX-License-Identifier: Apache-2.0
// The character map of SentencePiece ("precompiled_charsmap"), as Hugging Face applies it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/base/json_reader.h"

namespace stepforge {

/// Immutable; may be shared between threads.
class CharacterMap {
 public:
  /// Base64 of: the size in bytes of a double-array trie (u32, little-endian), the trie (u32 each), then texts that
  /// end with NUL. A leaf of the trie holds the offset of its text. Source: sentencepiece, src/normalizer.cc. Throws
  /// FormatError naming the value. What the trie says is checked when it is used.
  explicit CharacterMap(const JsonReader& charsmap);

  /// Ends early above `max_bytes`; the result is then longer, but not much.
  std::string apply(std::string_view text, size_t max_bytes) const;

  /// The head of apply(text), where `head` is that of `text` (see Normalizer::apply).
  size_t head(std::string_view text, size_t head) const;

 private:
  /// The replacement of the shortest beginning of `text` that is in the map; Hugging Face replaces all of `text` by it.
  std::optional<std::string_view> find(std::string_view text) const;

  /// Calls `use` with each part of `text` and its replacement until it returns false.
  void for_each_part(std::string_view text,
                     const std::function<bool(std::string_view, std::string_view)>& use) const;

  std::vector<uint32_t> trie_;
  std::string texts_;
};

}  // namespace stepforge
