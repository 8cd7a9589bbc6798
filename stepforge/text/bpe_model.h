// SPDX-License-Identifier: Apache-2.0
// Byte-pair encoding: the characters or bytes of a word, then merges.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/text/bpe_merges.h"
#include "stepforge/text/model.h"

namespace stepforge {

/// The "model" of a tokenizer.json with the type BPE.
struct BpeDefinition {
  std::shared_ptr<const Vocabulary> vocabulary;
  /// By rank: the merge of lowest index is applied first.
  std::vector<TokenPair> merges;
  /// merged_ids[rank] is the token that merges[rank] makes.
  std::vector<int32_t> merged_ids;
  /// Stands for characters that are not in the vocabulary; without it they are left out.
  std::optional<std::string> unk_token;
  /// Unknown characters beside each other become one token.
  bool fuse_unk = false;
  /// Unknown characters become the tokens "<0x00>" to "<0xFF>" of their bytes, if the vocabulary has them.
  bool byte_fallback = false;
  /// A word that is a token as a whole is encoded as that token, without merges (Llama 3).
  bool ignore_merges = false;
  /// Written before every character of a word but the first.
  std::string prefix;
  /// Written after the last character of a word.
  std::string suffix;

  /// Throws FormatError naming the value.
  explicit BpeDefinition(const JsonReader& model);
  BpeDefinition() = default;

  /// The vocabulary spells each single byte, and words need nothing but bytes.
  bool is_byte_level() const;
};

/// Reads words of bytes.
class ByteBpeModel final : public Model {
 public:
  /// `definition` is byte-level. A long word is merged in rounds of at most `round_merges` possible merges.
  explicit ByteBpeModel(const BpeDefinition& definition, size_t round_merges = BpeMerges::kRound);

  /// Time O(n log n) and memory of a few bytes per byte of the word.
  void append_word(std::string_view word, std::vector<int32_t>& ids) const override;

 private:
  std::shared_ptr<const Vocabulary> vocabulary_;
  std::array<int32_t, 256> byte_ids_{};
  BpeMerges merges_;
  bool ignore_merges_;
};

/// Reads words of characters.
class CharacterBpeModel final : public Model {
 public:
  explicit CharacterBpeModel(BpeDefinition definition);

  /// Time O(n log n).
  void append_word(std::string_view word, std::vector<int32_t>& ids) const override;

 private:
  class Symbols;

  BpeDefinition definition_;
  int32_t unk_id_ = -1;
  std::vector<int32_t> byte_ids_;
  BpeMerges merges_;
};

}  // namespace stepforge
