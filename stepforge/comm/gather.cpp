// SPDX-License-Identifier: Apache-2.0
#include "stepforge/comm/gather.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

namespace {

constexpr uint64_t kMaxTextBytes = uint64_t{1} << 24;

}  // namespace

std::vector<std::string> gather_texts(Communicator& group, std::string_view own) {
  const std::vector<uint64_t> sizes = gather_values(group, std::array{uint64_t{own.size()}});
  const uint64_t longest = *std::max_element(sizes.begin(), sizes.end());
  if (longest > kMaxTextBytes)
    throw Error(
        format("a text of {} bytes is too long to gather; at most {} are allowed", longest, kMaxTextBytes));
  std::vector<std::string> texts(sizes.size());
  if (longest == 0) return texts;
  std::string padded(own);
  padded.resize(longest);  // all parts of an all-gather have the same size
  const std::vector<char> all = gather_values(group, padded);
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    texts[rank].assign(all.data() + rank * longest, sizes[rank]);
  }
  return texts;
}

}  // namespace stepforge
