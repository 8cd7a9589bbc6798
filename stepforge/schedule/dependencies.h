// SPDX-License-Identifier: Apache-2.0
// What the actions of a schedule need from one another, besides the order on their rank.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "stepforge/schedule/schedule.h"

namespace stepforge {

/// Where an action is in a schedule.
struct ActionPlace {
  int rank = 0;
  int position = 0;

  bool operator==(const ActionPlace&) const = default;
};

/// Finds actions by stage and micro-batch. The gradient of the input is made by B or I, that of the weights
/// by B or W.
class ActionTable {
 public:
  /// What an action makes.
  enum class Product : unsigned char { output, loss, input_gradient, weight_gradient };
  static constexpr std::size_t kProducts = 4;

  /// Every stage and micro-batch of `schedule` must be in range. If several actions make the same product,
  /// the table has the first. `schedule` must outlive the table.
  explicit ActionTable(const Schedule& schedule);

  /// Nothing if no action makes it.
  std::optional<ActionPlace> find(Product product, int stage, int micro_batch) const;

  /// The action whose result `action` needs: of the stage before (forward) or after (B, I), or of the same
  /// stage and micro-batch. Nothing if it needs none or if that is not listed.
  std::optional<ActionPlace> need(const Action& action) const;

 private:
  std::size_t index(Product product, int stage, int micro_batch) const;

  const Schedule& schedule_;
  std::vector<std::optional<ActionPlace>> places_;
};

/// The products of an action: B makes two, every other kind one.
std::vector<ActionTable::Product> products_of(ActionKind kind);

/// The actions in an order in which each comes after the one before it on its rank and after what it needs. If
/// actions wait for each other in a cycle, the order ends before them and is shorter than the schedule; the first
/// action of each rank that is not in it waits.
std::vector<ActionPlace> run_order(const Schedule& schedule, const ActionTable& table);

}  // namespace stepforge
