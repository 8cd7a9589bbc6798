// SPDX-License-Identifier: Apache-2.0
#include "stepforge/schedule/generators.h"

#include <algorithm>
#include <cctype>
#include <cstddef>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/schedule/v_schedules.h"

namespace stepforge {

namespace {

using Shape = ScheduleShape;
using ActionList = std::vector<Action>;

/// The micro-batches in rounds, each of which passes through all chunks before the next begins. A round has
/// at least as many micro-batches as there are ranks (if there are so many), so that no rank waits for a
/// micro-batch to come back to its next chunk. Rounds differ in size by at most one; the first is a largest
/// one.
std::vector<int> round_sizes(const Shape& shape) {
  const int rounds = std::max(1, shape.micro_batches / shape.ranks);
  std::vector<int> sizes(static_cast<std::size_t>(rounds), shape.micro_batches / rounds);
  for (int i = 0; i < shape.micro_batches % rounds; ++i) ++sizes[static_cast<std::size_t>(i)];
  return sizes;
}

/// One action for each chunk and micro-batch of the rank, round by round; backward kinds take the last chunk
/// first.
ActionList by_rounds(const Shape& shape, const std::vector<int>& sizes, ActionKind kind, int rank) {
  ActionList actions;
  int begin = 0;
  for (const int size : sizes) {
    for (int i = 0; i < shape.chunks; ++i) {
      const int chunk = kind == ActionKind::forward ? i : shape.chunks - 1 - i;
      for (int micro_batch = begin; micro_batch < begin + size; ++micro_batch)
        actions.push_back({kind, shape.stage(chunk, rank), micro_batch});
    }
    begin += size;
  }
  return actions;
}

/// `warmup` forwards, then a forward and a backward in turn. If the backwards are of the input only, a W
/// follows each of them, `delay` backwards late.
ActionList in_turn(const ActionList& forwards, const ActionList& backwards, std::size_t warmup,
                   std::size_t delay) {
  ActionList actions;
  const std::size_t count = forwards.size();
  std::size_t forward = 0;
  const auto add_weight = [&](std::size_t i) {
    if (backwards[i].kind == ActionKind::backward_input)
      actions.push_back({ActionKind::backward_weight, backwards[i].stage, backwards[i].micro_batch});
  };
  while (forward < std::min(warmup, count)) actions.push_back(forwards[forward++]);
  for (std::size_t i = 0; i < count; ++i) {
    if (forward < count) actions.push_back(forwards[forward++]);
    actions.push_back(backwards[i]);
    if (i >= delay) add_weight(i - delay);
  }
  for (std::size_t i = count - std::min(count, delay); i < count; ++i) add_weight(i);
  return actions;
}

std::size_t count(int value) {
  return static_cast<std::size_t>(value);
}

ActionList gpipe(const Shape& shape, int rank) {
  const std::vector<int> one_round = {shape.micro_batches};
  return in_turn(by_rounds(shape, one_round, ActionKind::forward, rank),
                 by_rounds(shape, one_round, ActionKind::backward, rank), count(shape.micro_batches), 0);
}

/// Backwards in reverse order, as PyTorch lists them: what was computed last is freed first.
ActionList looped_bfs(const Shape& shape, int rank) {
  const std::vector<int> one_round = {shape.micro_batches};
  const ActionList forwards = by_rounds(shape, one_round, ActionKind::forward, rank);
  ActionList backwards(forwards.rbegin(), forwards.rend());
  for (Action& action : backwards) action.kind = ActionKind::backward;
  return in_turn(forwards, backwards, forwards.size(), 0);
}

ActionList one_f_one_b(const Shape& shape, int rank) {
  const std::vector<int> one_round = {shape.micro_batches};
  return in_turn(by_rounds(shape, one_round, ActionKind::forward, rank),
                 by_rounds(shape, one_round, ActionKind::backward, rank), count(shape.ranks - 1 - rank), 0);
}

/// The last rank needs the forwards of a round's earlier chunks before its first backward. Each rank before
/// it needs two more, one until its forward reaches the next rank, one until that rank's backward comes back.
ActionList interleaved_1f1b(const Shape& shape, int rank) {
  const std::vector<int> sizes = round_sizes(shape);
  return in_turn(by_rounds(shape, sizes, ActionKind::forward, rank),
                 by_rounds(shape, sizes, ActionKind::backward, rank),
                 count((shape.chunks - 1) * sizes.front() + 2 * (shape.ranks - 1 - rank)), 0);
}

/// One more forward per rank suffices, as W fills the gaps. Rank r delays its W's by r, so that all ranks end
/// at the same time.
ActionList interleaved_zero_bubble(const Shape& shape, int rank) {
  const std::vector<int> sizes = round_sizes(shape);
  return in_turn(by_rounds(shape, sizes, ActionKind::forward, rank),
                 by_rounds(shape, sizes, ActionKind::backward_input, rank),
                 count((shape.chunks - 1) * sizes.front() + shape.ranks - 1 - rank), count(rank));
}

ActionList zbv(const Shape& shape, int rank) {
  return zbv_actions(shape.ranks, rank, shape.micro_batches);
}

ActionList dual_pipe_v(const Shape& shape, int rank) {
  return dual_pipe_v_actions(shape.ranks, rank, shape.micro_batches);
}

std::string in_small_letters(std::string_view text) {
  std::string small(text);
  for (char& letter : small) letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  return small;
}

void check_shape(const ScheduleKind& kind, const Shape& shape) {
  const auto& [name, stages, actions_of, v_shape] = kind;
  if (shape.ranks < 1)
    throw UsageError(format("{}: {} pipeline ranks; there must be at least 1", name, shape.ranks));
  if (shape.micro_batches < 1)
    throw UsageError(format("{}: {} micro-batches; there must be at least 1", name, shape.micro_batches));
  if (stages.min <= shape.chunks && shape.chunks <= stages.max) return;
  const bool exact = stages.min == stages.max;
  throw UsageError(format("{} needs {}{} stage{} per rank, not {}: {}", name, exact ? "" : "at least ",
                          stages.min, stages.min == 1 ? "" : "s", shape.chunks,
                          exact ? "change the split or choose a schedule for that number"
                                : "split the model into more stages, or choose 1F1B"));
}

}  // namespace

constexpr ScheduleKind ScheduleKind::gpipe{"GPipe", {1, 1}, stepforge::gpipe};
constexpr ScheduleKind ScheduleKind::one_f_one_b{"1F1B", {1, 1}, stepforge::one_f_one_b};
constexpr ScheduleKind ScheduleKind::interleaved_1f1b{
    "Interleaved1F1B", {2, StagesPerRank::kAnyNumber}, stepforge::interleaved_1f1b};
constexpr ScheduleKind ScheduleKind::looped_bfs{
    "LoopedBFS", {1, StagesPerRank::kAnyNumber}, stepforge::looped_bfs};
constexpr ScheduleKind ScheduleKind::interleaved_zero_bubble{
    "InterleavedZeroBubble", {2, StagesPerRank::kAnyNumber}, stepforge::interleaved_zero_bubble};
constexpr ScheduleKind ScheduleKind::zbv_zero_bubble{"ZBVZeroBubble", {2, 2}, zbv, true};
constexpr ScheduleKind ScheduleKind::dual_pipe_v{"DualPipeV", {2, 2}, stepforge::dual_pipe_v, true};

std::vector<ScheduleKind> schedule_kinds(const Registry& registry) {
  std::vector<ScheduleKind> kinds = {ScheduleKind::gpipe,
                                     ScheduleKind::one_f_one_b,
                                     ScheduleKind::interleaved_1f1b,
                                     ScheduleKind::looped_bfs,
                                     ScheduleKind::interleaved_zero_bubble,
                                     ScheduleKind::zbv_zero_bubble,
                                     ScheduleKind::dual_pipe_v};
  const auto& added = registry.all<ScheduleKind>();
  kinds.insert(kinds.end(), added.begin(), added.end());
  return kinds;
}

ScheduleKind find_schedule(std::string_view name, const Registry& registry) {
  std::vector<std::string> names;
  for (const ScheduleKind& kind : schedule_kinds(registry)) {
    if (in_small_letters(kind.name) == in_small_letters(name)) return kind;
    names.emplace_back(kind.name);
  }
  throw UsageError(format("there is no pipeline schedule \"{}\"; there are {}, or a CSV file of your own",
                          name, join(names, ", ")));
}

Schedule make_schedule(const ScheduleKind& kind, int ranks, int stages_per_rank, int micro_batches,
                       const Extensions& extensions) {
  const Shape shape = {
      .ranks = ranks, .chunks = stages_per_rank, .micro_batches = micro_batches, .extensions = extensions};
  check_shape(kind, shape);
  Schedule schedule;
  schedule.micro_batches = micro_batches;
  for (int chunk = 0; chunk < stages_per_rank; ++chunk) {
    for (int i = 0; i < ranks; ++i)
      schedule.rank_of_stage.push_back(kind.v_shape && chunk == 1 ? ranks - 1 - i : i);
  }
  for (int rank = 0; rank < ranks; ++rank) schedule.actions.push_back(kind.actions_of(shape, rank));
  return schedule;
}

}  // namespace stepforge
