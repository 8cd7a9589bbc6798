// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/word_cache.h"

namespace stepforge {

bool WordCache::append_large(std::string_view word, IdBuffer& ids) {
  if (word.size() > Large::kMaxBytes) return false;
  const auto* known = large_.find(Large::place_of(word, word.data() + word.size()));
  if (known == nullptr) return false;
  ids.append(known->ids, known->count());
  return true;
}

void WordCache::insert(std::string_view word, std::span<const int32_t> ids) {
  const char* const end = word.data() + word.size();
  const bool is_short = word.size() <= Small::kMaxBytes;
  if (is_short) small_.insert(Small::place_of(word, end), ids);
  const bool is_large = !is_short || ids.size() > Small::kMaxIds;
  if (is_large && word.size() <= Large::kMaxBytes && ids.size() <= Large::kMaxIds)
    large_.insert(Large::place_of(word, end), ids);
}

}  // namespace stepforge
