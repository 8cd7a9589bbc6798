// SPDX-License-Identifier: Apache-2.0
// Finds added tokens in a text.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "stepforge/text/definition.h"

namespace stepforge {

/// Immutable. The tokens must outlive it.
class AddedTokenFinder {
 public:
  AddedTokenFinder() = default;
  explicit AddedTokenFinder(const std::vector<const AddedToken*>& tokens);

  struct Found {
    size_t begin = 0;
    const AddedToken* token = nullptr;
  };

  /// The leftmost occurrence of a token from `from` on; of several that begin there, the longest.
  std::optional<Found> find(std::string_view text, size_t from) const;

 private:
  std::unordered_map<std::string_view, const AddedToken*> by_content_;
  /// By first byte: the distinct lengths of the tokens, longest first.
  std::array<std::vector<size_t>, 256> lengths_;
};

}  // namespace stepforge
