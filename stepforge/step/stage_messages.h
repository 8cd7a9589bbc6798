// SPDX-License-Identifier: Apache-2.0
// The messages between the stages of a pipeline, as a schedule implies them, and where a rank receives them.
#pragma once

#include <compare>
#include <cstddef>
#include <map>
#include <optional>
#include <vector>

#include "stepforge/schedule/schedule.h"

namespace stepforge {

/// The output of a stage, or the gradient of its input, for one micro-batch.
struct StageMessage {
  int from = 0;  ///< member of the pipeline
  int to = 0;    ///< the same rank if the other stage is there: then nothing is sent
  int tag = 0;   ///< value_tag()
  int micro_batch = 0;

  auto operator<=>(const StageMessage&) const = default;

  /// The stage whose input it carries, or the gradient of that input.
  int stage() const { return tag / 2; }
  bool is_gradient() const { return tag % 2 == 1; }
};

class StageMessages {
 public:
  /// Stages before `first_trained_stage` send and need no gradients. `schedule` must outlive it.
  StageMessages(const Schedule& schedule, int first_trained_stage)
      : schedule_(schedule), first_trained_stage_(first_trained_stage) {}

  /// The message that an action sends to another stage, or receives from one.
  std::optional<StageMessage> sent_by(const Action& action) const;
  std::optional<StageMessage> needed_by(const Action& action) const;

  struct Incoming {
    StageMessage message;
    std::size_t position = 0;  ///< the action of the rank before which it is received
  };

  /// The messages of each other rank to rank `self`, in the sender's order, by sender. A message is received before
  /// the action that should run when it is sent, as a message must wait somewhere and no buffer lies between the
  /// ranks; one action before it is needed at the latest. Throws UsageError if one side sends what the other does not
  /// take, or the reverse.
  std::map<int, std::vector<Incoming>> incoming(int self) const;

 private:
  int rank_of(int stage) const;

  const Schedule& schedule_;
  int first_trained_stage_;
};

}  // namespace stepforge
