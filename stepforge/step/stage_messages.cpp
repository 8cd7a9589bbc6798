// SPDX-License-Identifier: Apache-2.0
#include "stepforge/step/stage_messages.h"

#include <algorithm>
#include <ranges>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/schedule/timeline.h"
#include "stepforge/step/program.h"

namespace stepforge {

namespace {

bool makes_input_gradient(ActionKind kind) {
  return kind == ActionKind::backward || kind == ActionKind::backward_input;
}

}  // namespace

int StageMessages::rank_of(int stage) const {
  return element(schedule_.rank_of_stage, stage);
}

std::optional<StageMessage> StageMessages::sent_by(const Action& action) const {
  const auto [kind, stage, m] = action;
  if (kind == ActionKind::forward && stage + 1 < schedule_.stages())
    return StageMessage{rank_of(stage), rank_of(stage + 1), value_tag(stage + 1, false), m};
  if (makes_input_gradient(kind) && stage > first_trained_stage_)
    return StageMessage{rank_of(stage), rank_of(stage - 1), value_tag(stage, true), m};
  return std::nullopt;
}

std::optional<StageMessage> StageMessages::needed_by(const Action& action) const {
  const auto [kind, stage, m] = action;
  if (kind == ActionKind::forward && stage > 0) return sent_by({ActionKind::forward, stage - 1, m});
  if (makes_input_gradient(kind) && stage + 1 < schedule_.stages() && stage >= first_trained_stage_)
    return sent_by({ActionKind::backward, stage + 1, m});
  return std::nullopt;
}

std::map<int, std::vector<StageMessages::Incoming>> StageMessages::incoming(int self) const {
  // Forwards and both halves of backwards take about equally long.
  const Timeline expected = simulate(schedule_, uniform_times(schedule_.stages(), 1, 1, 1));
  const std::vector<ActionTime>& own_times = element(expected.actions, self);
  const std::vector<Action>& own = element(schedule_.actions, self);
  std::map<int, std::vector<Incoming>> result;
  for (int rank = 0; rank < schedule_.ranks(); ++rank) {
    const std::vector<Action>& actions = element(schedule_.actions, rank);
    for (std::size_t i = 0; rank != self && i < actions.size(); ++i) {
      const std::optional<StageMessage> message = sent_by(actions[i]);
      if (!message || message->to != self) continue;
      const double sent = element(expected.actions, rank)[i].end;
      const auto running = std::ranges::upper_bound(own_times, sent, {}, &ActionTime::end);
      result[rank].push_back({*message, static_cast<std::size_t>(running - own_times.begin())});
    }
  }
  std::map<StageMessage, std::size_t> latest;
  for (std::size_t k = 0; k < own.size(); ++k) {
    const std::optional<StageMessage> message = needed_by(own[k]);
    if (message && message->from != self) latest[*message] = k == 0 ? 0 : k - 1;
  }
  for (auto& [rank, messages] : result) {
    std::size_t before = own.size();
    for (Incoming& incoming : std::views::reverse(messages)) {
      const auto found = latest.find(incoming.message);
      if (found == latest.end()) {
        throw UsageError(format("pipeline rank {} sends rank {} what it does not need for micro-batch {}",
                                rank, self, incoming.message.micro_batch));
      }
      before = incoming.position = std::min({before, incoming.position, found->second});
      latest.erase(found);
    }
  }
  if (!latest.empty()) {
    const StageMessage& missing = latest.begin()->first;
    throw UsageError(format("pipeline rank {} never sends what rank {} needs for micro-batch {}",
                            missing.from, self, missing.micro_batch));
  }
  return result;
}

}  // namespace stepforge
