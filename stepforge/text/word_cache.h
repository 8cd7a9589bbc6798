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
  /// Where the ids of a word may be.
  using Place = WordTable<2, 4>::Place;

  /// Looks for `word`, which is not empty and whose memory can be read up to `end`. The answer takes a while to come from
  /// memory: ask for several words first.
  Place place_of(std::string_view word, const char* end) const {
    const Place place = Small::place_of(word, end);
    small_.prefetch(place);
    return place;
  }

  /// Appends the ids of `word`; false if it is not cached.
  bool append(std::string_view word, const Place& place, IdBuffer& ids) {
    const Small::Ids* const known = small_.find(place);
    if (known != nullptr && known->count() <= Small::kMaxIds) {
      ids.append(known->ids, known->count());
      return true;
    }
    return (known != nullptr || word.size() > Small::kMaxBytes) && append_large(word, ids);
  }

  /// Words that are long or have many ids are not cached: they rarely repeat.
  void insert(std::string_view word, std::span<const int32_t> ids);

 private:
  /// Nearly all words of texts in Latin script. Of a short word with more ids it has the number only.
  using Small = WordTable<2, 4>;
  using Large = WordTable<12, 24>;

  bool append_large(std::string_view word, IdBuffer& ids);

  Small small_{512, size_t{1} << 17};
  Large large_{32, size_t{1} << 13};
};

}  // namespace stepforge
