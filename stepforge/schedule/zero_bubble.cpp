// SPDX-License-Identifier: Apache-2.0
#include "stepforge/schedule/zero_bubble.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

namespace {

constexpr double kRounding = 1e-9;  ///< relative; sums of times and of memory are compared

/// What has been listed for a rank so far.
struct Rank {
  std::vector<Action> actions;
  std::vector<double> forward_ends;
  std::vector<double> input_ends;
  int weights = 0;    ///< W's
  double now = 0;     ///< when its last action ends
  double bubble = 0;  ///< idle since its first action
  double memory = 0;

  int forwards() const { return static_cast<int>(forward_ends.size()); }
  int inputs() const { return static_cast<int>(input_ends.size()); }
};

/// Lists as many forwards as fit before the first backward, then rounds of one backward of each rank, from
/// the last to the first, and one forward of each, from the first to the last. W's fill gaps, and free memory
/// where the limit asks for it.
class ZeroBubbleBuilder {
 public:
  /// `late_forward`: a last forward of the warm-up may delay the rank's first backward.
  ZeroBubbleBuilder(const StageTimes& times, int micro_batches, double limit, bool late_forward)
      : times_(times),
        micro_batches_(micro_batches),
        limit_(limit * (1 + kRounding)),
        late_forward_(late_forward),
        ranks_(times.stages.size()) {
    times_.stages.back().forward += times_.stages.back().loss;
    for (const StageTime& stage : times_.stages)
      rounding_ += kRounding * (stage.forward + stage.backward_input + stage.backward_weight);
  }

  Schedule build() {
    warm_up();
    for (int round = 0; round < micro_batches_; ++round) {
      for (std::size_t s = ranks_.size(); s > 0; --s) add_input(s - 1);
      for (std::size_t s = 0; s < ranks_.size(); ++s) add_forward_within_limit(s);
    }
    Schedule schedule;
    schedule.micro_batches = micro_batches_;
    for (std::size_t s = 0; s < ranks_.size(); ++s) {
      while (ranks_[s].weights < micro_batches_) add_weight(s);
      schedule.rank_of_stage.push_back(static_cast<int>(s));
      schedule.actions.push_back(std::move(ranks_[s].actions));
    }
    return schedule;
  }

 private:
  const StageTime& stage(std::size_t s) const { return times_.stages[s]; }

  /// When micro-batch 0 comes back to each rank, if every rank passes it on at once.
  std::vector<double> first_inputs() const {
    std::vector<double> starts(ranks_.size());
    double time = times_.latency * static_cast<double>(ranks_.size() - 1);
    for (const StageTime& stage : times_.stages) time += stage.forward;
    for (std::size_t s = ranks_.size(); s > 0; --s) {
      starts[s - 1] = time;
      time += stage(s - 1).backward_input + times_.latency;
    }
    return starts;
  }

  void warm_up() {
    const std::vector<double> starts = first_inputs();
    for (std::size_t s = 0; s < ranks_.size(); ++s) {
      add_forward(s);
      while (can_forward(s) && fits(s)) {
        const double start = std::max(ranks_[s].now, forward_ready(s));
        const double latest = starts[s] - (late_forward_ ? rounding_ : stage(s).forward - rounding_);
        if (start > latest) break;
        add_forward(s);
      }
    }
  }

  /// Whether there is a next micro-batch for this rank. A rank that has something to do stays two forwards
  /// behind the rank before it, which so has one more in flight as long as there are any.
  bool can_forward(std::size_t s) const {
    const Rank& rank = ranks_[s];
    const int next = rank.forwards();
    if (next == micro_batches_) return false;
    if (s == 0) return true;
    const int before = ranks_[s - 1].forwards();
    return rank.inputs() == next || before == micro_batches_ ? next < before : next + 1 < before;
  }
  bool fits(std::size_t s) const { return ranks_[s].memory + stage(s).activations <= limit_; }

  double forward_ready(std::size_t s) const {
    return s == 0 ? 0 : ranks_[s - 1].forward_ends[ranks_[s].forward_ends.size()] + times_.latency;
  }

  void add_forward_within_limit(std::size_t s) {
    if (!can_forward(s)) return;
    while (!fits(s) && has_weights(s)) add_weight(s);
    if (fits(s)) add_forward(s);
  }

  void add_forward(std::size_t s) {
    Rank& rank = ranks_[s];
    if (rank.actions.empty())
      rank.now = forward_ready(s);
    else
      wait(s, forward_ready(s));
    const int micro_batch = rank.forwards();
    add(s, {ActionKind::forward, static_cast<int>(s), micro_batch}, stage(s).forward, stage(s).activations);
    rank.forward_ends.push_back(rank.now);
  }

  void add_input(std::size_t s) {
    Rank& rank = ranks_[s];
    const int micro_batch = rank.inputs();
    const auto i = static_cast<std::size_t>(micro_batch);
    wait(s, s + 1 == ranks_.size() ? rank.forward_ends[i] : ranks_[s + 1].input_ends[i] + times_.latency);
    add(s, {ActionKind::backward_input, static_cast<int>(s), micro_batch}, stage(s).backward_input,
        stage(s).weight_activations - stage(s).activations);
    rank.input_ends.push_back(rank.now);
  }

  bool has_weights(std::size_t s) const { return ranks_[s].weights < ranks_[s].inputs(); }

  void add_weight(std::size_t s) {
    const int micro_batch = ranks_[s].weights++;
    add(s, {ActionKind::backward_weight, static_cast<int>(s), micro_batch}, stage(s).backward_weight,
        -stage(s).weight_activations);
  }

  void add(std::size_t s, const Action& action, double seconds, double memory) {
    Rank& rank = ranks_[s];
    rank.actions.push_back(action);
    rank.now += seconds;
    rank.memory += memory;
  }

  /// Fills the time until `ready` with W's. Where the gap is shorter than a W, it is filled if leaving it
  /// would make this the rank with the largest bubble, which is what the step takes.
  void wait(std::size_t s, double ready) {
    Rank& rank = ranks_[s];
    while (has_weights(s)) {
      const double gap = ready - rank.now;
      const bool whole = gap >= stage(s).backward_weight - rounding_;
      const bool largest = gap > rounding_ && rank.bubble + gap > largest_bubble() + rounding_;
      if (!whole && !largest) break;
      add_weight(s);
    }
    rank.bubble += std::max(0.0, ready - rank.now);
    rank.now = std::max(rank.now, ready);
  }

  double largest_bubble() const { return std::ranges::max_element(ranks_, {}, &Rank::bubble)->bubble; }

  StageTimes times_;
  int micro_batches_;
  double limit_;
  bool late_forward_;
  double rounding_ = 0;  ///< seconds
  std::vector<Rank> ranks_;
};

void check_arguments(const StageTimes& times, int micro_batches, double limit) {
  if (times.stages.empty() || micro_batches < 1)
    throw UsageError(
        format("zero-bubble schedule: {} stages and {} micro-batches; there must be at least one of each",
               times.stages.size(), micro_batches));
  for (std::size_t s = 0; s < times.stages.size(); ++s) {
    if (const double activations = times.stages[s].activations; activations > limit)
      throw UsageError(
          format("zero-bubble schedule: a forward of stage {} keeps {} of activations, more than the limit "
                 "of {}; raise the limit",
                 s, activations, limit));
  }
}

}  // namespace

Schedule zero_bubble_auto(const StageTimes& times, int micro_batches, double limit) {
  check_arguments(times, micro_batches, limit);
  Schedule early = ZeroBubbleBuilder(times, micro_batches, limit, false).build();
  Schedule late = ZeroBubbleBuilder(times, micro_batches, limit, true).build();
  const bool early_is_shorter = simulate(early, times).longest_span() <= simulate(late, times).longest_span();
  return early_is_shorter ? early : late;
}

}  // namespace stepforge
