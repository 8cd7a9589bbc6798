// SPDX-License-Identifier: Apache-2.0
// Unigram: of all ways to write a word as tokens, the one with the highest sum of scores.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "stepforge/text/model.h"
#include "stepforge/text/piece_trie.h"

namespace stepforge {

/// A score as Hugging Face's reader (serde_json) makes it from the shortest decimal text of `exact`: the digits as one
/// number, then a product with or quotient by a power of ten, each rounded. At times it differs from `exact` in the last bit,
/// which decides between sums that are equal otherwise.
double twice_rounded(double exact);

/// Between equal sums the order of Hugging Face's additions in double precision decides.
class UnigramModel final : public Model {
 public:
  /// Reads {"vocab": [["token", score], ...], "unk_id", "byte_fallback"}. Throws FormatError naming the value.
  explicit UnigramModel(const JsonReader& model);

  const std::shared_ptr<const Vocabulary>& vocabulary() const { return vocabulary_; }

  /// Time O(n) times the longest token; 16 bytes of memory per byte of the word.
  void append_word(std::string_view word, std::vector<int32_t>& ids) const override;

 private:
  /// The best way to write the word up to some byte.
  struct Best {
    double score = 0;
    uint32_t begin = kNone;  ///< of its last token
    int32_t id = 0;
  };
  static constexpr uint32_t kNone = ~uint32_t{0};

  std::vector<Best> best_paths(std::string_view word) const;
  int32_t unknown_id(std::string_view text) const;
  void append_text(std::string_view text, std::vector<int32_t>& ids) const;

  std::shared_ptr<const Vocabulary> vocabulary_;
  std::vector<double> scores_;
  double unk_score_ = 0;
  std::optional<int32_t> unk_id_;
  /// The ids of "<0x00>" to "<0xFF>"; empty without byte fallback.
  std::vector<int32_t> byte_ids_;
  PieceTrie trie_;
};

}  // namespace stepforge
