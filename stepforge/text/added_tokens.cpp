#include "stepforge/text/added_tokens.h"

#include <algorithm>

namespace stepforge {

AddedTokenFinder::AddedTokenFinder(const std::vector<const AddedToken*>& tokens) : empty_(tokens.empty()) {
  for (const AddedToken* token : tokens)
    by_first_byte_[static_cast<uint8_t>(token->content.front())].push_back(token);
  for (auto& candidates : by_first_byte_) {
    std::stable_sort(candidates.begin(), candidates.end(),
                     [](const AddedToken* left, const AddedToken* right) {
                       return left->content.size() > right->content.size();
                     });
  }
}

std::optional<AddedTokenFinder::Found> AddedTokenFinder::find(std::string_view text, size_t from) const {
  if (empty_) return std::nullopt;
  for (size_t begin = from; begin < text.size(); ++begin) {
    for (const AddedToken* token : by_first_byte_[static_cast<uint8_t>(text[begin])]) {
      if (text.substr(begin).starts_with(token->content)) return Found{begin, token};
    }
  }
  return std::nullopt;
}

}  // namespace stepforge
