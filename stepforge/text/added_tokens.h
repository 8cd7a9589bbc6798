// SPDX-License-Identifier: Apache-2.0
// Finds added tokens, such as "<|endoftext|>", in a text.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/text/definition.h"
#include "stepforge/text/piece_trie.h"

namespace stepforge {

/// Immutable. A byte takes constant time on average, whatever the tokens are. The tokens, which must not be
/// empty, must outlive it.
class AddedTokenFinder {
 public:
  AddedTokenFinder() = default;
  explicit AddedTokenFinder(const std::vector<const AddedToken*>& tokens);

  /// A token in a text, with the white space that belongs to it. Offsets in bytes.
  struct Found {
    size_t begin = 0;
    size_t end = 0;
    const AddedToken* token = nullptr;
  };

  /// The tokens of a text from left to right, as Hugging Face finds them. At each place the longest token counts,
  /// and of equal ones the first; a token inside a word that must stand alone is skipped.
  class Search {
   public:
    Search(const AddedTokenFinder& finder, std::string_view text) : finder_(finder), text_(text) {}

    /// The next token, which begins where the one before it ends or later.
    std::optional<Found> next();

   private:
    const AddedTokenFinder& finder_;
    std::string_view text_;
    size_t from_ = 0;  ///< where the next match may begin
    size_t done_ = 0;  ///< the end of the token before, with its white space
  };

 private:
  struct Match {
    size_t begin = 0;
    const AddedToken* token = nullptr;
  };
  std::optional<Match> find(std::string_view text, size_t from) const;
  size_t find_begin(std::string_view text, size_t from) const;
  uint32_t next_state(uint32_t state, uint8_t byte) const;

  /// A state of the Aho-Corasick automaton: a node of the tree, which stands for a beginning of patterns.
  struct State {
    uint32_t length = 0;   ///< in bytes
    uint32_t shorter = 0;  ///< the longest other node that it ends with
    uint32_t pattern = 0;  ///< the longest whole pattern that it ends with, 0 if none
  };

  std::vector<const AddedToken*> tokens_;
  PieceTrie patterns_;  ///< ids are places in tokens_
  std::vector<State> states_;
  std::array<bool, 256> begins_ = {};  ///< whether a pattern begins with this byte
  std::string first_bytes_;            ///< those; a single one is found many bytes at a time
};

}  // namespace stepforge
