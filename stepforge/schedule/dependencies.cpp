// SPDX-License-Identifier: Apache-2.0
#include "stepforge/schedule/dependencies.h"

namespace stepforge {

using Product = ActionTable::Product;

std::vector<Product> products_of(ActionKind kind) {
  switch (kind) {
    case ActionKind::forward:
      return {Product::output};
    case ActionKind::loss:
      return {Product::loss};
    case ActionKind::backward_input:
      return {Product::input_gradient};
    case ActionKind::backward_weight:
      return {Product::weight_gradient};
    case ActionKind::backward:
      break;
  }
  return {Product::input_gradient, Product::weight_gradient};
}

ActionTable::ActionTable(const Schedule& schedule) : schedule_(schedule) {
  places_.resize(index(Product::output, schedule.stages(), 0));
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    const std::vector<Action>& actions = schedule.actions[static_cast<std::size_t>(rank)];
    for (std::size_t i = 0; i < actions.size(); ++i) {
      for (const Product product : products_of(actions[i].kind)) {
        auto& place = places_[index(product, actions[i].stage, actions[i].micro_batch)];
        if (!place) place = {.rank = rank, .position = static_cast<int>(i)};
      }
    }
  }
}

std::size_t ActionTable::index(Product product, int stage, int micro_batch) const {
  const auto cell = static_cast<std::size_t>(stage) * static_cast<std::size_t>(schedule_.micro_batches) +
                    static_cast<std::size_t>(micro_batch);
  return cell * kProducts + static_cast<std::size_t>(product);
}

std::optional<ActionPlace> ActionTable::find(Product product, int stage, int micro_batch) const {
  return places_[index(product, stage, micro_batch)];
}

std::optional<ActionPlace> ActionTable::need(const Action& action) const {
  const auto [kind, stage, micro_batch] = action;
  switch (kind) {
    case ActionKind::forward:
      return stage == 0 ? std::nullopt : find(Product::output, stage - 1, micro_batch);
    case ActionKind::loss:
      return find(Product::output, stage, micro_batch);
    case ActionKind::backward_weight:
      return find(Product::input_gradient, stage, micro_batch);
    case ActionKind::backward:
    case ActionKind::backward_input:
      break;
  }
  if (stage + 1 < schedule_.stages()) return find(Product::input_gradient, stage + 1, micro_batch);
  const auto loss = find(Product::loss, stage, micro_batch);
  return loss ? loss : find(Product::output, stage, micro_batch);
}

std::vector<ActionPlace> run_order(const Schedule& schedule, const ActionTable& table) {
  std::vector<int> done(static_cast<std::size_t>(schedule.ranks()), 0);
  // The ranks that wait for an action of another rank, by that rank.
  std::vector<std::vector<int>> waiting(static_cast<std::size_t>(schedule.ranks()));
  std::vector<int> ready;
  for (int rank = schedule.ranks() - 1; rank >= 0; --rank) ready.push_back(rank);
  std::vector<ActionPlace> order;
  while (!ready.empty()) {
    const int rank = ready.back();
    ready.pop_back();
    const auto r = static_cast<std::size_t>(rank);
    const std::vector<Action>& actions = schedule.actions[r];
    while (static_cast<std::size_t>(done[r]) < actions.size()) {
      const auto need = table.need(actions[static_cast<std::size_t>(done[r])]);
      if (need && need->position >= done[static_cast<std::size_t>(need->rank)]) {
        waiting[static_cast<std::size_t>(need->rank)].push_back(rank);
        break;
      }
      order.push_back({.rank = rank, .position = done[r]++});
      ready.insert(ready.end(), waiting[r].begin(), waiting[r].end());
      waiting[r].clear();
    }
  }
  return order;
}

}  // namespace stepforge
