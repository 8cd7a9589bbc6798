// SPDX-License-Identifier: Apache-2.0
#include "stepforge/data/source_tree.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/base/random.h"

namespace stepforge {

struct SourceTree::Node {
  int64_t rows = 0;  ///< in an epoch
  double tokens = 0.0;
  double tokens_per_row = 0.0;
  double documents_per_row = 0.0;
  std::string identity = {};

  // Of a leaf.
  int64_t leaf = 0;
  std::optional<RowOrder> order = {};

  // Of a group: one of the mixtures.
  std::vector<std::unique_ptr<const Node>> children = {};
  std::unique_ptr<const Mixture> by_weight = {};
  std::unique_ptr<const EpochMixture> by_epoch = {};

  /// The rows of each child, in a block or an epoch of the mixture.
  const std::vector<int64_t>& parts() const {
    return by_weight ? by_weight->rows_per_block() : by_epoch->rows_per_epoch();
  }
  double part_sum() const { return static_cast<double>(by_weight ? Mixture::kBlockRows : rows); }
};

/// Makes the nodes. Leaves are numbered in the order of the tree.
class SourceTree::Builder {
 public:
  Builder(const MixtureOptions& options, std::vector<Leaf>& leaves) : options_(options), leaves_(leaves) {}

  /// `place` is that of the list, `seed` its own.
  std::unique_ptr<const Node> group(const std::vector<SourceEntry>& entries, bool concat,
                                    const std::string& place, uint64_t seed, int depth) {
    if (entries.empty()) throw UsageError(format("{}: no data source is given; list at least one", place));
    if (depth > kMaxDepth)
      throw UsageError(
          format("{}: sources are nested more than {} deep; use fewer groups", place, kMaxDepth));
    auto node = std::make_unique<Node>();
    for (size_t i = 0; i < entries.size(); ++i) {
      const std::string child = format("{}.{}", place, i);
      const SourceEntry& entry = entries[i];
      node->children.push_back(entry.source ? leaf(entry, child)
                                            : group(entry.entries, entry.concat, child + ".sources",
                                                    stream_key(seed, format("group {}", i)), depth + 1));
    }
    const std::vector<std::string> names = named(entries, place);
    if (concat) require_no_shares(entries, names);
    if (const std::vector<int64_t> rows = epoch_rows(*node, entries, concat, names); !rows.empty()) {
      node->by_epoch = std::make_unique<EpochMixture>(rows, seed, options_.shuffle);
    } else {
      node->by_weight = std::make_unique<Mixture>(row_weights(*node, entries, names), names, seed);
    }
    summarize(*node);
    return node;
  }

 private:
  std::unique_ptr<const Node> leaf(const SourceEntry& entry, const std::string& place) {
    const RowSource& source = *entry.source;
    if (source.rows() < 1) {
      throw UsageError(
          format("{} ({}): the source has no rows; use more data, or leave it out", place, entry.name));
    }
    const auto number = static_cast<int64_t>(leaves_.size());
    leaves_.push_back({.name = entry.name, .source = entry.source});
    auto node = std::make_unique<Node>();
    const auto rows = static_cast<double>(source.rows());
    node->rows = source.rows();
    node->tokens = static_cast<double>(source.tokens());
    // Tokens after the last full row are in no row.
    node->tokens_per_row = std::min(node->tokens / rows, static_cast<double>(source.seq_len()));
    node->documents_per_row = static_cast<double>(source.documents()) / rows;
    node->identity = source.fingerprint();
    node->leaf = number;
    node->order.emplace(source.rows(), options_.seed, number, options_.shuffle);
    return node;
  }

  static std::vector<std::string> named(const std::vector<SourceEntry>& entries, const std::string& place) {
    std::vector<std::string> names;
    for (size_t i = 0; i < entries.size(); ++i) {
      const std::string& name = entries[i].name;
      names.push_back(format("{}.{}{}", place, i, name.empty() ? "" : format(" ({})", name)));
    }
    return names;
  }

  static void require_no_shares(const std::vector<SourceEntry>& entries,
                                const std::vector<std::string>& names) {
    for (size_t i = 0; i < entries.size(); ++i) {
      if (entries[i].weight == 1.0 && !entries[i].epochs) continue;
      throw UsageError(
          format("{}: the sources of a group with combine = \"concat\" are read once each; remove {}, or set "
                 "combine = \"mix\"",
                 names[i], entries[i].epochs ? "epochs" : "weight"));
    }
  }

  /// The rows of each entry in an epoch of the list, or nothing if the list is mixed by weight.
  static std::vector<int64_t> epoch_rows(const Node& node, const std::vector<SourceEntry>& entries,
                                         bool concat, const std::vector<std::string>& names) {
    const auto has_epochs = [](const SourceEntry& entry) { return entry.epochs.has_value(); };
    if (!concat && std::ranges::none_of(entries, has_epochs)) return {};
    std::vector<int64_t> counts;
    double sum = 0.0;
    for (size_t i = 0; i < entries.size(); ++i) {
      const std::optional<double>& epochs = entries[i].epochs;
      if (!concat && (!epochs || entries[i].weight != 1.0)) {
        throw UsageError(
            format("{} has {}, but a list of sources has either weights or epochs: "
                   "give every entry of the list epochs and no weight, or none of them epochs",
                   names[i], epochs ? "both epochs and a weight" : "no epochs"));
      }
      const double passes = epochs.value_or(1.0);
      if (!std::isfinite(passes) || passes <= 0.0) {
        throw UsageError(format("{}: epochs {} is not a positive number; to not use the source, leave it out",
                                names[i], passes));
      }
      const double rows = passes * static_cast<double>(node.children[i]->rows);
      sum += rows;
      if (sum > kMaxEpochRows)
        throw UsageError(
            format("{}: epochs {} makes an epoch of {:.3g} rows; lower it", names[i], passes, sum));
      counts.push_back(std::llround(rows));
      if (counts.back() > 0) continue;
      throw UsageError(format(
          "{}: epochs {} of {} rows rounds to no row; set epochs to at least {:.3g}, or leave the source out",
          names[i], passes, node.children[i]->rows, 1.0 / static_cast<double>(node.children[i]->rows)));
    }
    return counts;
  }

  /// The weights of the list as shares of the rows.
  std::vector<double> row_weights(const Node& node, const std::vector<SourceEntry>& entries,
                                  const std::vector<std::string>& names) const {
    const bool equal = std::ranges::all_of(entries, [](const auto& entry) { return entry.weight == 1.0; });
    double most = 0.0;
    for (const auto& child : node.children) most = std::max(most, child->tokens);
    std::vector<double> weights;
    for (size_t i = 0; i < entries.size(); ++i) {
      const Node& child = *node.children[i];
      double weight = entries[i].weight;
      if (equal && options_.temperature > 0.0)
        weight = std::pow(child.tokens / most, 1.0 / options_.temperature);
      double per_row = 1.0;
      if (options_.weights_by == ShareOf::tokens) per_row = child.tokens_per_row;
      if (options_.weights_by == ShareOf::samples) per_row = child.documents_per_row;
      if (per_row <= 0.0) {
        throw UsageError(
            format("{}: the source has no {}, so its weight cannot be a share of them; set "
                   "data.weights_by = \"rows\"",
                   names[i], options_.weights_by == ShareOf::tokens ? "tokens" : "samples"));
      }
      weights.push_back(weight / per_row);
    }
    return weights;
  }

  static void summarize(Node& node) {
    std::string parts;
    for (size_t i = 0; i < node.children.size(); ++i) {
      const Node& child = *node.children[i];
      const auto part = static_cast<double>(node.parts()[i]);
      node.rows += node.by_epoch ? node.by_epoch->rows_per_epoch()[i] : child.rows;
      node.tokens += child.tokens;
      node.tokens_per_row += part * child.tokens_per_row;
      node.documents_per_row += part * child.documents_per_row;
      node.identity += "\n" + (child.children.empty() ? child.identity : content_hash(child.identity));
      parts += format(" {}", node.parts()[i]);
    }
    node.tokens_per_row /= node.part_sum();
    node.documents_per_row /= node.part_sum();
    // The rows that weights result in: 1 and 3 are the same as 0.25 and 0.75.
    node.identity += (node.by_epoch ? " epoch" : "") + parts;
  }

  static constexpr double kMaxEpochRows = 0x1p52;  // exact as a floating-point number

  const MixtureOptions& options_;
  std::vector<Leaf>& leaves_;
};

SourceTree::SourceTree(const std::vector<SourceEntry>& entries, const std::string& place,
                       const MixtureOptions& options) {
  if (!std::isfinite(options.temperature) || options.temperature < 0.0) {
    throw UsageError(
        format("temperature {}: it must be a positive number, or 0 for none", options.temperature));
  }
  root_ = Builder(options, leaves_).group(entries, /*concat=*/false, place, options.seed, /*depth=*/0);
  divide(*root_, total_rows());
}

SourceTree::~SourceTree() = default;

void SourceTree::divide(const Node& node, double rows) {
  if (node.children.empty()) {
    leaves_[static_cast<size_t>(node.leaf)].rows = rows;
    return;
  }
  for (size_t i = 0; i < node.children.size(); ++i)
    divide(*node.children[i], rows / node.part_sum() * static_cast<double>(node.parts()[i]));
}

RowRef SourceTree::locate(int64_t running) const {
  const Node* node = root_.get();
  while (!node->children.empty()) {
    const RowRef found = node->by_weight ? node->by_weight->locate(running) : node->by_epoch->locate(running);
    node = node->children[static_cast<size_t>(found.source)].get();
    running = found.running;
  }
  return {node->leaf, (*node->order)(running)};
}

int64_t SourceTree::rows_per_epoch() const {
  return root_->rows;
}

double SourceTree::total_rows() const {
  return root_->part_sum();
}

const std::string& SourceTree::identity() const {
  return root_->identity;
}

}  // namespace stepforge
