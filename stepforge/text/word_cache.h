// SPDX-License-Identifier: Apache-2.0
// Caches the ids of words. Bounded: of words that share a place, those that repeat stay.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "stepforge/text/id_buffer.h"
#include "stepforge/text/word_table.h"

namespace stepforge {

/// Owned by one thread. Memory: at most about 12 MiB.
class WordCache {
 public:
  /// Appends the ids of `word`, which is not empty; false if it is not cached. The memory of the word can be read up to `end`.
  bool append(std::string_view word, const char* end, IdBuffer& ids) {
    if (word.size() <= Small::kMaxBytes) {
      if (const auto* known = small_.find(Small::key_of(word, end))) {
        ids.append(known->ids, known->count());
        return true;
      }
    }
    return append_large(word, end, ids);
  }

  /// Words that are long or have many ids are not cached: they rarely repeat. `word` must not be in the cache.
  void insert(std::string_view word, std::span<const int32_t> ids);

 private:
  /// Nearly all words of texts in Latin script.
  using Small = WordTable<2, 4>;
  using Large = WordTable<6, 20>;

  bool append_large(std::string_view word, const char* end, IdBuffer& ids);

  Small small_{512, size_t{1} << 17};
  Large large_{64, size_t{1} << 14};
};

}  // namespace stepforge
