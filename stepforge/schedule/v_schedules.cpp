// SPDX-License-Identifier: Apache-2.0
#include "stepforge/schedule/v_schedules.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <deque>
#include <utility>

namespace stepforge {

namespace {

/// Writes the actions of a rank with two stages, down and up. Each action takes the next micro-batch of its
/// stage and kind. The published orders are for many micro-batches: those from `micro_batches` on are left
/// out, which keeps an order that can run, as no micro-batch needs another.
class VWriter {
 public:
  VWriter(int ranks, int rank, int micro_batches)
      : stages_{rank, 2 * ranks - 1 - rank}, micro_batches_(micro_batches) {}

  void forward(int chunk) { add(ActionKind::forward, chunk, next(forwards_, chunk)); }
  void backward(int chunk) { add(ActionKind::backward, chunk, next(backwards_, chunk)); }
  void input(int chunk) {
    const int micro_batch = next(backwards_, chunk);
    add(ActionKind::backward_input, chunk, micro_batch);
    queue_.push_back({chunk, micro_batch});
  }
  /// The oldest weight gradient of the queue, or of one chunk. False if there is none.
  bool weight() { return take(queue_.begin()); }
  bool weight(int chunk) { return take(std::ranges::find(queue_, chunk, &Queued::chunk)); }
  int forwards(int chunk) const { return forwards_.at(static_cast<std::size_t>(chunk)); }
  std::vector<Action> take_actions() { return std::move(actions_); }

 private:
  struct Queued {
    int chunk = 0;
    int micro_batch = 0;
  };

  static int next(std::array<int, 2>& counts, int chunk) {
    return counts.at(static_cast<std::size_t>(chunk))++;
  }

  void add(ActionKind kind, int chunk, int micro_batch) {
    if (micro_batch < micro_batches_)
      actions_.push_back({kind, stages_.at(static_cast<std::size_t>(chunk)), micro_batch});
  }
  bool take(const std::deque<Queued>::iterator& queued) {
    if (queued == queue_.end()) return false;
    add(ActionKind::backward_weight, queued->chunk, queued->micro_batch);
    queue_.erase(queued);
    return true;
  }

  std::array<int, 2> stages_;
  int micro_batches_;
  std::array<int, 2> forwards_ = {0, 0};
  std::array<int, 2> backwards_ = {0, 0};
  std::deque<Queued> queue_;
  std::vector<Action> actions_;
};

}  // namespace

std::vector<Action> zbv_actions(int ranks, int rank, int micro_batches) {
  const int published = std::max(2 * ranks - 1, micro_batches);
  VWriter writer(ranks, rank, micro_batches);
  const auto backward = [&](int chunk) {
    writer.input(chunk);
    writer.weight(chunk);
  };
  for (int i = 0; i < 2 * (ranks - rank) - 1; ++i) writer.forward(0);
  for (int i = 0; i < rank; ++i) {
    writer.forward(1);
    writer.forward(0);
  }
  for (int i = 0; i < ranks - rank; ++i) {
    writer.forward(1);
    backward(1);
  }
  while (writer.forwards(1) < published) {
    if (writer.forwards(0) < published) writer.forward(0);
    backward(0);
    writer.forward(1);
    backward(1);
  }
  for (int i = 0; i < rank; ++i) {
    writer.input(0);
    writer.input(1);
  }
  for (int i = 0; i < ranks - rank; ++i) backward(0);
  while (writer.weight(1)) continue;
  while (writer.weight(0)) continue;
  return writer.take_actions();
}

std::vector<Action> dual_pipe_v_actions(int ranks, int rank, int micro_batches) {
  const int published = std::max(2 * ranks, micro_batches);
  const int after = ranks - 1 - rank;  // ranks after this one
  VWriter writer(ranks, rank, micro_batches);
  for (int i = 0; i < 2 * after; ++i) writer.forward(0);
  for (int i = 0; i < rank + 1; ++i) {
    writer.forward(0);
    writer.forward(1);
  }
  for (int i = 0; i < after; ++i) {
    writer.input(1);
    writer.weight();
    writer.forward(1);
  }
  for (int i = 0; i < published - 2 * ranks + rank + 1; ++i) {
    writer.forward(0);
    writer.backward(1);
    writer.forward(1);
    writer.backward(0);
  }
  for (int i = 0; i < after; ++i) {
    writer.backward(1);
    writer.forward(1);
    writer.backward(0);
  }
  // The later half of these backwards leaves its weight gradients for the gaps that follow.
  for (int i = 0; i < 2 * (rank + 1); ++i) {
    const int chunk = i % 2 == 0 ? 1 : 0;
    if (i < rank + 1)
      writer.backward(chunk);
    else
      writer.input(chunk);
  }
  for (int i = 0; i < after; ++i) {
    writer.weight();
    writer.input(0);
  }
  while (writer.weight()) continue;
  return writer.take_actions();
}

}  // namespace stepforge
