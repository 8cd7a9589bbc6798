// SPDX-License-Identifier: Apache-2.0
// Finds all pieces with which a text begins.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "stepforge/base/json_reader.h"

namespace stepforge {

/// A tree of the bytes of pieces. Immutable; may be shared between threads.
class PieceTrie {
 public:
  /// The longest piece and the most distinct beginnings of pieces that are accepted: they bound time and memory.
  static constexpr size_t kMaxPieceBytes = 1024;
  static constexpr size_t kMaxNodes = size_t{1} << 25;

  PieceTrie() : nodes_(1) {}

  /// Pieces, none of them empty, and their ids; of equal pieces the last one counts. Throws FormatError naming `vocab` above the
  /// limits.
  PieceTrie(std::vector<std::pair<std::string_view, int32_t>> pieces, const JsonReader& vocab);

  /// Without limits.
  explicit PieceTrie(std::vector<std::pair<std::string_view, int32_t>> pieces);

  /// Nodes, for callers that walk the tree themselves. Node 0 is the root; every node comes after its parent, and no deeper
  /// node before it.
  uint32_t size() const { return static_cast<uint32_t>(nodes_.size()); }
  /// The child of `node` for a byte, or 0.
  uint32_t child_of(uint32_t node, uint8_t label) const {
    const Node* found = child(nodes_[node], label);
    return found == nullptr ? 0 : static_cast<uint32_t>(found - nodes_.data());
  }
  /// The first child of `node`, those that follow it, and the byte of a node.
  uint32_t first_child(uint32_t node) const { return nodes_[node].first_child; }
  uint32_t children(uint32_t node) const { return nodes_[node].children; }
  uint8_t label(uint32_t node) const { return nodes_[node].label; }
  /// The piece that ends at `node`, or -1.
  int32_t id(uint32_t node) const { return nodes_[node].id; }

  /// Calls `use(length, id)` for each piece with which `text` begins, shortest first. Takes at most kMaxPieceBytes
  /// steps.
  template <typename Use>
  void for_each_prefix(std::string_view text, const Use& use) const {
    const Node* node = &nodes_.front();
    for (size_t i = 0; i < text.size(); ++i) {
      node = child(*node, static_cast<uint8_t>(text[i]));
      if (node == nullptr) return;
      if (node->id >= 0) use(i + 1, node->id);
    }
  }

 private:
  struct Node {
    uint32_t first_child = 0;
    uint16_t children = 0;
    uint8_t label = 0;
    int32_t id = -1;
  };

  /// Returns whether there were at most `max_nodes`.
  bool build(std::vector<std::pair<std::string_view, int32_t>> pieces, size_t max_nodes);
  const Node* child(const Node& node, uint8_t label) const;

  /// The children of a node stand beside each other, ordered by label. The first node is the root.
  std::vector<Node> nodes_;
};

}  // namespace stepforge
