// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/piece_trie.h"

#include <algorithm>
#include <limits>

#include "stepforge/base/format.h"

namespace stepforge {

namespace {

/// The pieces below a node: they are equal in their first `depth` bytes.
struct Range {
  uint32_t begin = 0;
  uint32_t end = 0;
  uint32_t depth = 0;
};

}  // namespace

PieceTrie::PieceTrie(std::vector<std::pair<std::string_view, int32_t>> pieces, const JsonReader& vocab)
    : nodes_(1) {
  for (const auto& [piece, id] : pieces) {
    if (piece.size() > kMaxPieceBytes)
      vocab.fail(format("a token of {} bytes; at most {} are accepted", piece.size(), kMaxPieceBytes));
  }
  if (!build(std::move(pieces), kMaxNodes))
    vocab.fail(format("the tokens have more than {} distinct beginnings", kMaxNodes));
}

PieceTrie::PieceTrie(std::vector<std::pair<std::string_view, int32_t>> pieces) : nodes_(1) {
  build(std::move(pieces), std::numeric_limits<uint32_t>::max());
}

bool PieceTrie::build(std::vector<std::pair<std::string_view, int32_t>> pieces, size_t max_nodes) {
  std::stable_sort(pieces.begin(), pieces.end(),
                   [](const auto& left, const auto& right) { return left.first < right.first; });
  std::vector<Range> ranges = {{0, static_cast<uint32_t>(pieces.size()), 0}};
  for (size_t at = 0; at < nodes_.size(); ++at) {
    auto [begin, end, depth] = ranges[at];
    for (; begin < end && pieces[begin].first.size() == depth; ++begin) nodes_[at].id = pieces[begin].second;
    nodes_[at].first_child = static_cast<uint32_t>(nodes_.size());
    while (begin < end) {
      const char label = pieces[begin].first[depth];
      uint32_t next = begin + 1;
      while (next < end && pieces[next].first[depth] == label) ++next;
      if (nodes_.size() == max_nodes) return false;
      nodes_.push_back({.label = static_cast<uint8_t>(label)});
      ranges.push_back({begin, next, depth + 1});
      ++nodes_[at].children;
      begin = next;
    }
  }
  return true;
}

const PieceTrie::Node* PieceTrie::child(const Node& node, uint8_t label) const {
  const Node* first = nodes_.data() + node.first_child;
  const Node* last = first + node.children;
  const Node* found =
      std::lower_bound(first, last, label, [](const Node& n, uint8_t l) { return n.label < l; });
  return found != last && found->label == label ? found : nullptr;
}

}  // namespace stepforge
