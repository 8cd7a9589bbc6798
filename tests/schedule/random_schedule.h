// SPDX-License-Identifier: Apache-2.0
// Random schedules that are legal: every action comes after what it needs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "stepforge/schedule/schedule.h"
#include "tests/support/dice.h"

namespace stepforge::testing {

/// Neighbouring stages are on one rank or on neighbouring ranks of the ring; every rank has one.
inline std::vector<int> random_stages(Dice& dice, int ranks, int stages) {
  while (true) {
    std::vector<int> rank_of_stage = {dice.below(ranks)};
    while (static_cast<int>(rank_of_stage.size()) < stages)
      rank_of_stage.push_back((rank_of_stage.back() + dice.below(3) - 1 + ranks) % ranks);
    std::vector<bool> used(static_cast<size_t>(ranks), false);
    for (const int rank : rank_of_stage) used[static_cast<size_t>(rank)] = true;
    if (std::ranges::find(used, false) == used.end()) return rank_of_stage;
  }
}

/// The actions of all ranks come in one random order that respects what they need, so a runtime with buffers
/// can run it. One that is `hasty` prefers backwards, like 1F1B.
inline Schedule random_schedule(Dice& dice, int micro_batches, std::vector<int> rank_of_stage, int ranks,
                                bool hasty) {
  Schedule schedule{micro_batches, std::move(rank_of_stage), {}};
  schedule.actions.resize(static_cast<size_t>(ranks));
  const int stages = schedule.stages();
  const bool lists_loss = dice.below(3) == 0;
  std::vector<Action> ready;
  for (int m = 0; m < micro_batches; ++m) ready.push_back({ActionKind::forward, 0, m});
  while (!ready.empty()) {
    size_t chosen = static_cast<size_t>(dice.below(static_cast<int>(ready.size())));
    for (int tries = 0; hasty && ready[chosen].kind == ActionKind::forward && tries < 4; ++tries)
      chosen = static_cast<size_t>(dice.below(static_cast<int>(ready.size())));
    const Action action = ready[chosen];
    ready.erase(ready.begin() + static_cast<std::ptrdiff_t>(chosen));
    const auto [kind, stage, m] = action;
    schedule.actions[static_cast<size_t>(schedule.rank_of_stage[static_cast<size_t>(stage)])].push_back(
        action);
    const auto make_ready = [&](ActionKind next, int of_stage) { ready.push_back({next, of_stage, m}); };
    const auto start_backward = [&](int of_stage) {
      make_ready(dice.toss() ? ActionKind::backward : ActionKind::backward_input, of_stage);
    };
    const bool last = stage + 1 == stages;
    if (kind == ActionKind::forward && !last) make_ready(ActionKind::forward, stage + 1);
    if (kind == ActionKind::forward && last && lists_loss) make_ready(ActionKind::loss, stage);
    if (kind == ActionKind::loss || (kind == ActionKind::forward && last && !lists_loss))
      start_backward(stage);
    if (kind == ActionKind::backward || kind == ActionKind::backward_input) {
      if (stage > 0) start_backward(stage - 1);
      if (kind == ActionKind::backward_input) make_ready(ActionKind::backward_weight, stage);
    }
  }
  return schedule;
}

}  // namespace stepforge::testing
