// Finds the added tokens that are spelled out in a text.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
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

  bool empty() const { return empty_; }

  /// The leftmost appearance of a token from `from` on, the longest of those that begin there.
  std::optional<Found> find(std::string_view text, size_t from) const;

 private:
  bool empty_ = true;
  /// By first byte, longest first.
  std::array<std::vector<const AddedToken*>, 256> by_first_byte_;
};

}  // namespace stepforge
