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

  struct Found {
    size_t begin = 0;  ///< offset in bytes
    const AddedToken* token = nullptr;
  };

  /// The leftmost token that begins at byte `from` or later; if several begin there, the longest.
  std::optional<Found> find(std::string_view text, size_t from) const;

 private:
  std::unordered_map<std::string_view, const AddedToken*> by_content_;
  /// For each first byte, the distinct lengths of the tokens that begin with it, longest first.
  std::array<std::vector<size_t>, 256> lengths_;
};

}  // namespace stepforge
