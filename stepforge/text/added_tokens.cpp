// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/added_tokens.h"

#include <algorithm>
#include <functional>

namespace stepforge {

AddedTokenFinder::AddedTokenFinder(const std::vector<const AddedToken*>& tokens) {
  for (const AddedToken* token : tokens) {
    by_content_.emplace(token->content, token);
    lengths_[static_cast<uint8_t>(token->content.front())].push_back(token->content.size());
  }
  for (std::vector<size_t>& lengths : lengths_) {
    std::sort(lengths.begin(), lengths.end(), std::greater<>());
    lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
  }
}

std::optional<AddedTokenFinder::Found> AddedTokenFinder::find(std::string_view text, size_t from) const {
  if (by_content_.empty()) return std::nullopt;
  for (size_t begin = from; begin < text.size(); ++begin) {
    for (const size_t length : lengths_[static_cast<uint8_t>(text[begin])]) {
      if (length > text.size() - begin) continue;
      const auto token = by_content_.find(text.substr(begin, length));
      if (token != by_content_.end()) return Found{begin, token->second};
    }
  }
  return std::nullopt;
}

}  // namespace stepforge
