// SPDX-License-Identifier: Apache-2.0
// Finds added tokens, such as "<|endoftext|>", in a text.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "stepforge/text/definition.h"

namespace stepforge {

/// Immutable. The tokens, which must not be empty, must outlive it.
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

  std::unordered_map<std::string_view, const AddedToken*> by_pattern_;
  /// For each first byte, the distinct lengths of the tokens that begin with it, longest first.
  std::array<std::vector<size_t>, 256> lengths_;
};

}  // namespace stepforge
