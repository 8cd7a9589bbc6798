// SPDX-License-Identifier: Apache-2.0
// Sources of rows in nested groups: which row of which source comes when.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "stepforge/base/choices.h"
#include "stepforge/data/mixture.h"
#include "stepforge/data/row_source.h"

namespace stepforge {

/// A source, or a group of entries.
struct SourceEntry {
  std::string name{};                         ///< for messages and statistics
  std::shared_ptr<const RowSource> source{};  ///< null for a group
  double weight = 1.0;                        ///< relative to the other entries of its list
  std::optional<double> epochs =
      std::nullopt;                       ///< instead of a weight: passes over it in one epoch of its list
  bool concat = false;                    ///< of a group: its entries are one source, each once per epoch
  std::vector<SourceEntry> entries = {};  ///< of a group
};

struct MixtureOptions {
  uint64_t seed = 0;
  bool shuffle = true;
  ShareOf weights_by = ShareOf::rows;
  /// If T > 0: in a list whose weights are all 1, they are tokens^(1/T) instead.
  double temperature = 0.0;
};

/// A list of entries becomes a Mixture of their weights, or an EpochMixture if they have epochs or are one source.
/// The running number of a group counts the rows of the mixture inside it, so the order is a function of the row's
/// number alone.
class SourceTree {
 public:
  static constexpr int kMaxDepth = 8;

  struct Leaf {
    std::string name;
    std::shared_ptr<const RowSource> source;
    double rows = 0.0;  ///< on average, in total_rows() rows of the tree
  };

  /// `place` names the list in messages, such as "data.sources". Throws UsageError that names the entry if there is
  /// no entry, one has no rows, its share is not a positive number or rounds to no row, some entries of a list have
  /// weights and some epochs, or groups are nested more than kMaxDepth deep.
  SourceTree(const std::vector<SourceEntry>& entries, const std::string& place,
             const MixtureOptions& options);
  ~SourceTree();
  SourceTree(const SourceTree&) = delete;
  SourceTree& operator=(const SourceTree&) = delete;

  /// The sources in the order of the tree.
  const std::vector<Leaf>& leaves() const { return leaves_; }
  /// The leaf of row number `running` >= 0, and which of its rows that is. Safe to call from several threads.
  RowRef locate(int64_t running) const;
  /// Rows of one epoch: each entry once, or as often as its epochs say.
  int64_t rows_per_epoch() const;
  double total_rows() const;
  /// Equal for trees with equal rows, given the seed.
  const std::string& identity() const;

 private:
  struct Node;
  class Builder;
  void divide(const Node& node, double rows);

  std::vector<Leaf> leaves_;
  std::unique_ptr<const Node> root_;
};

}  // namespace stepforge
