// SPDX-License-Identifier: Apache-2.0
// WordPiece and WordLevel: words by the longest tokens, or as a whole.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/text/model.h"
#include "stepforge/text/piece_trie.h"

namespace stepforge {

/// A word is its longest beginning in the vocabulary, then the longest continuation, and so on; if there is none, or
/// the word has too many characters, it is the unknown token. Time O(n) times the longest token.
class WordPieceModel final : public Model {
 public:
  WordPieceModel(const JsonReader& model, std::shared_ptr<const Vocabulary> vocabulary);
  void append_word(std::string_view word, std::vector<int32_t>& ids) const override;

 private:
  /// False if a part of the word is in no token.
  bool append_pieces(std::string_view word, std::vector<int32_t>& ids) const;

  std::shared_ptr<const Vocabulary> vocabulary_;
  std::string unk_token_;
  size_t max_characters_;
  PieceTrie beginnings_;
  PieceTrie continuations_;
};

/// A word is a token, or the unknown token.
class WordLevelModel final : public Model {
 public:
  WordLevelModel(const JsonReader& model, std::shared_ptr<const Vocabulary> vocabulary);
  void append_word(std::string_view word, std::vector<int32_t>& ids) const override;

 private:
  std::shared_ptr<const Vocabulary> vocabulary_;
  std::string unk_token_;
};

}  // namespace stepforge
