// SPDX-License-Identifier: Apache-2.0
// Repeated patterns in the lines of a table, such as those of the layers of a model.
#pragma once

#include <algorithm>
#include <cstddef>

namespace stepforge {

/// `length` items that come `times` times in a row.
struct Repetition {
  std::size_t length = 1;
  std::size_t times = 1;

  std::size_t items_saved() const { return length * (times - 1); }
};

/// The repetition at the beginning of items [begin, end) that saves most items, among those of at least
/// `min_times` times. `alike(i, j)` tells whether two items are equal.
template <typename Alike>
Repetition find_repetition(std::size_t begin, std::size_t end, std::size_t min_times, const Alike& alike) {
  constexpr std::size_t kLongest = 12;
  Repetition best;
  for (std::size_t length = 1; length <= std::min(kLongest, end - begin); ++length) {
    std::size_t same = 0;  // items that equal the one `length` earlier
    while (begin + length + same < end && alike(begin + same, begin + length + same)) ++same;
    const Repetition found{length, 1 + same / length};
    if (found.times >= min_times && found.items_saved() > best.items_saved()) best = found;
  }
  return best;
}

}  // namespace stepforge
