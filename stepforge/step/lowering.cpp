// SPDX-License-Identifier: Apache-2.0
#include "stepforge/step/lowering.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <ranges>
#include <utility>
#include <vector>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/step/alternate.h"
#include "stepforge/step/stage_messages.h"

namespace stepforge {

namespace {

/// Every `together` micro-batches forward, then backward, through one stage.
Schedule one_stage(int micro_batches, int together = 1) {
  Schedule schedule{micro_batches, {0}, {{}}};
  for (int first = 0; first < micro_batches; first += together)
    for (const ActionKind kind : {ActionKind::forward, ActionKind::backward})
      for (int m = first; m < std::min(first + together, micro_batches); ++m)
        schedule.actions[0].push_back({kind, 0, m});
  return schedule;
}

/// The forwards of all stages, micro-batch by micro-batch.
Schedule forward_only(const Schedule& schedule, int micro_batches) {
  Schedule result{micro_batches, schedule.rank_of_stage, {}};
  result.actions.resize(schedule.actions.size());
  for (int m = 0; m < micro_batches; ++m)
    for (int stage = 0; stage < result.stages(); ++stage)
      element(result.actions, element(result.rank_of_stage, stage))
          .push_back({ActionKind::forward, stage, m});
  return result;
}

class Lowering {
 public:
  Lowering(StepProgram& program, const RankLayout& layout, Schedule schedule, const PipelineOptions& pipeline)
      : program_(program),
        pipeline_(pipeline),
        schedule_(std::move(schedule)),
        messages_(schedule_, trains() ? pipeline.first_trained_stage : schedule_.stages()),
        group_(layout.pipeline_group),
        self_(layout.index_in(group_)) {
    if (schedule_.ranks() != layout.size_of(group_)) {
      throw UsageError(format("a schedule for {} pipeline ranks does not fit a pipeline of {}",
                              schedule_.ranks(), layout.size_of(group_)));
    }
    if (schedule_.micro_batches != program.micro_batches) {
      throw UsageError(format("a schedule for {} micro-batches does not fit a step of {}",
                              schedule_.micro_batches, program.micro_batches));
    }
    for (const Action& action : own_actions())
      loss_is_listed_ = loss_is_listed_ || action.kind == ActionKind::loss;
    loaded_.resize(static_cast<std::size_t>(program.micro_batches), false);
    losses_.resize(static_cast<std::size_t>(program.micro_batches), -1);
    stages_.resize(static_cast<std::size_t>(schedule_.stages()));
    for (int b = 0; b < std::ssize(program.blocks); ++b) {
      const int stage = element(program.blocks, b).stage;
      if (stage < 0 || stage >= schedule_.stages()) {
        throw UsageError(format("block {} is in stage {}, but the schedule has {} stages",
                                element(program.blocks, b).name, stage, schedule_.stages()));
      }
      element(stages_, stage).push_back(b);
    }
    find_gradients();
    find_exchanges();
  }

  void write() {
    const std::vector<Action>& actions = own_actions();
    const auto incoming = messages_.incoming(self_);
    std::map<int, std::size_t> next;  // of each sender
    for (std::size_t k = 0; k < actions.size();) {
      const std::size_t last = partner(k);
      for (const auto& [sender, messages] : incoming)
        for (std::size_t& i = next[sender]; i < messages.size() && messages[i].position <= last; ++i)
          receive(messages[i].message);
      const int begin = size();
      int middle = begin;
      for (; k <= last; ++k) {
        middle = size();
        compute(actions[k]);
      }
      if (middle > begin) take_turns(begin, middle);
    }
  }

 private:
  const std::vector<Action>& own_actions() const { return element(schedule_.actions, self_); }
  bool trains() const { return program_.kind == ProgramKind::train; }
  bool is_last(int stage) const { return stage + 1 == schedule_.stages(); }
  bool runs_backward(int stage) const { return trains() && stage >= pipeline_.first_trained_stage; }
  const ProgramBlock& block(int b) const { return element(program_.blocks, b); }
  const ProgramValue& value(int v) const { return element(program_.values, v); }

  bool runs(int b) const { return trains() || !block(b).trained_only; }

  /// Where backward ends: below the first trained block there are no gradients.
  void find_gradients() {
    keeps_graph_.resize(program_.blocks.size(), false);
    for (int b = 0; b < std::ssize(program_.blocks); ++b)
      element(keeps_graph_, b) = trains() && (is_trained(b) || passes_gradient(b));
  }

  void find_exchanges() {
    dispatched_.resize(program_.blocks.size());
    combined_.resize(program_.blocks.size());
    const auto producer = [&](int v) { return value(v).producer; };
    const auto consumer = [&](int v) { return value(v).consumers.front(); };
    for (int b = 0; b < std::ssize(program_.blocks); ++b) {
      if (block(b).experts == 0) continue;
      element(dispatched_, std::ranges::max(block(b).sent | std::views::transform(producer))).push_back(b);
      element(combined_, std::ranges::min(block(b).returned | std::views::transform(consumer))).push_back(b);
    }
  }

  void receive(const StageMessage& message) {
    // Without training, the batch says how many tokens a message has.
    if (!trains()) load(message.micro_batch);
    Operation& operation =
        message.is_gradient()
            ? add_message(OpKind::receive_gradient, last_block(message.stage() - 1), message)
            : add_message(OpKind::receive, element(stages_, message.stage()).front(), message);
    if (last_computation_ >= 0) operation.needs.push_back(last_computation_);
  }

  int last_block(int stage) const { return element(stages_, stage).back(); }

  int size() const { return static_cast<int>(program_.operations.size()); }
  int last() const { return size() - 1; }

  /// Whether the action computes with experts of other ranks.
  bool exchanges(const Action& action) const {
    const bool forward = action.kind == ActionKind::forward;
    const bool backward = action.kind == ActionKind::backward || action.kind == ActionKind::backward_input;
    return std::ranges::any_of(element(stages_, action.stage), [&](int b) {
      return block(b).experts > 0 && (forward || (backward && keeps_graph(b)));
    });
  }

  /// The place of the action that takes turns with action k; k if there is none.
  std::size_t partner(std::size_t k) const {
    if (!pipeline_.overlap_exchanges || !trains()) return k;
    const std::vector<Action>& actions = own_actions();
    const std::size_t other = turn_partner(actions, k, schedule_.ranks() > 1);
    return exchanges(actions[k]) && exchanges(actions[other]) ? other : k;
  }

  void take_turns(int begin, int middle) {
    const std::vector<int> places = alternate_exchanges(program_, begin, middle);
    const auto move = [&](int& i) { i = i < begin ? i : element(places, i - begin); };
    std::ranges::for_each(losses_, move);
    for (auto& [lane, sent] : sent_) std::ranges::for_each(sent, move);
    last_computation_ = last();
    while (element(program_.operations, last_computation_).lane != Lane::compute) --last_computation_;
  }

  Operation& add_message(OpKind kind, int block, const StageMessage& message) {
    Operation& operation = program_.operations.emplace_back(make_operation(kind, -1, group_));
    const int peer = sends_message(kind) ? message.to : message.from;
    operation.block = block;
    operation.micro_batch = message.micro_batch;
    operation.peer = element(element(program_.groups, group_).ranks, peer);
    operation.tag = message.tag;
    operation.lane = pipeline_lane(self_, peer, schedule_.ranks(), sends_message(kind));
    return operation;
  }

  Operation& add_block(OpKind kind, int b, int m) {
    Operation& operation = program_.operations.emplace_back(make_operation(kind));
    operation.block = b;
    operation.micro_batch = m;
    last_computation_ = last();
    return operation;
  }

  void add_exchange(OpKind kind, int b, int m) {
    Operation& operation =
        program_.operations.emplace_back(make_operation(kind, -1, find_group(program_.groups, kExpertGroup)));
    operation.block = b;
    operation.micro_batch = m;
  }

  /// Rows leave as soon as block b has made the last value that they consist of, while the blocks listed before their
  /// experts compute.
  void dispatch_from(int b, int m) {
    for (const int experts : element(dispatched_, b))
      if (runs(experts)) add_exchange(OpKind::dispatch, experts, m);
  }

  /// Sends the result of operation `made`. From then on, computations for this neighbour wait for the message that is
  /// `sends_in_flight` older.
  void send(OpKind kind, int block, const Action& action, int made) {
    const std::optional<StageMessage> message = messages_.sent_by(action);
    if (!message || message->to == self_) return;
    Operation& operation = add_message(kind, block, *message);
    std::vector<int>& sent = sent_[operation.lane];
    // What was made with a loss may be older than that message.
    const auto window = static_cast<std::size_t>(pipeline_.sends_in_flight);
    if (sent.size() >= window && sent[sent.size() - window] < made)
      element(program_.operations, made).needs.push_back(sent[sent.size() - window]);
    sent.push_back(last());
  }

  void load(int m) {
    if (element(loaded_, m)) return;
    element(loaded_, m) = true;
    program_.operations.emplace_back(make_operation(OpKind::load_batch)).micro_batch = m;
    last_computation_ = last();
  }

  void compute(const Action& action) {
    switch (action.kind) {
      case ActionKind::forward:
        return forward(action);
      case ActionKind::loss:
        return loss(action.stage, action.micro_batch);
      case ActionKind::backward:
      case ActionKind::backward_input:
      case ActionKind::backward_weight:
        if (runs_backward(action.stage)) backward(action);
    }
  }

  void forward(const Action& action) {
    const auto [kind, stage, m] = action;
    load(m);
    for (const int b : element(stages_, stage)) {
      if (block(b).last() || !runs(b)) continue;
      Operation& operation = add_block(OpKind::forward, b, m);
      operation.keep_graph = keeps_graph(b);
      if (block(b).experts > 0) add_exchange(OpKind::combine, b, m);
      dispatch_from(b, m);
    }
    send(OpKind::send, last_block(stage), action, last_computation_);
    if (is_last(stage) && !loss_is_listed_) loss(stage, m);
  }

  void loss(int stage, int m) {
    const OpKind kind = trains()                                 ? OpKind::loss_forward_backward
                        : program_.kind == ProgramKind::evaluate ? OpKind::loss
                                                                 : OpKind::logits;
    for (const int b : element(stages_, stage))
      if (block(b).last() && runs(b)) add_block(kind, b, m);
    element(losses_, m) = last();
  }

  bool is_trained(int b) const {
    return std::ranges::any_of(block(b).units, [&](int u) { return element(program_.units, u).trainable; });
  }

  bool keeps_graph(int b) const { return element(keeps_graph_, b); }

  /// Whether the backward of a block computes the gradient of an input. Blocks before it are known.
  bool passes_gradient(int b) const {
    return std::ranges::any_of(block(b).inputs, [&](int v) {
      const int producer = value(v).producer;
      return producer >= 0 ? keeps_graph(producer) : block(b).stage > pipeline_.first_trained_stage;
    });
  }

  /// A backward is split into input and weight gradients only if it has both; otherwise it runs whole.
  OpKind backward_kind(ActionKind action, int b) const {
    const bool split = passes_gradient(b) && is_trained(b);
    if (action == ActionKind::backward || !split) return OpKind::backward;
    return action == ActionKind::backward_input ? OpKind::backward_input : OpKind::backward_weight;
  }
  bool has_part(ActionKind action, int b) const {
    if (action == ActionKind::backward_input) return passes_gradient(b);
    return action == ActionKind::backward || is_trained(b);
  }

  /// The blocks from last to first, but experts as late as possible: other blocks compute while the gradients of results
  /// are on their way.
  std::vector<int> backward_order(int stage) const {
    std::vector<int> order;
    const std::vector<int>& blocks = element(stages_, stage);
    for (auto b = blocks.rbegin(); b != blocks.rend(); ++b) {
      if (block(*b).experts > 0) continue;
      std::ranges::copy(element(dispatched_, *b), std::back_inserter(order));
      order.push_back(*b);
    }
    return order;
  }

  void backward(const Action& action) {
    const auto [kind, stage, m] = action;
    const std::vector<int>& blocks = element(stages_, stage);
    for (const int b : backward_order(stage)) {
      if (block(b).last() || !keeps_graph(b) || !has_part(kind, b)) continue;
      const OpKind part = backward_kind(kind, b);
      add_block(part, b, m);
      if (part == OpKind::backward_weight) continue;
      if (block(b).experts > 0 && passes_gradient(b)) add_exchange(OpKind::dispatch_gradient, b, m);
      for (const int experts : element(combined_, b))
        if (keeps_graph(experts)) add_exchange(OpKind::combine_gradient, experts, m);
    }
    // A stage of heads alone has made its gradient with the loss.
    const bool only_heads = std::ranges::all_of(blocks, [&](int b) { return block(b).last(); });
    const int made = only_heads ? element(losses_, m) : last_computation_;
    send(OpKind::send_gradient, blocks.front(), action, made);
  }

  StepProgram& program_;
  const PipelineOptions& pipeline_;
  Schedule schedule_;
  StageMessages messages_;
  int group_;
  int self_;  // member of the pipeline
  bool loss_is_listed_ = false;
  std::vector<std::vector<int>> stages_;      // the blocks of each stage that this rank has
  std::vector<bool> keeps_graph_;             // of each block
  std::vector<std::vector<int>> dispatched_;  // of each block: the blocks of experts that its rows go to
  std::vector<std::vector<int>> combined_;    // of each block: the blocks of experts whose results come to it
  std::vector<bool> loaded_;                  // of each micro-batch
  std::vector<int> losses_;                   // the operation of the loss of each micro-batch
  int last_computation_ = -1;
  std::map<Lane, std::vector<int>> sent_;  // operations
};

}  // namespace

void lower_schedule(StepProgram& program, const RankLayout& layout, const PipelineOptions& pipeline) {
  const Schedule& given = pipeline.schedule;
  const int together = pipeline.overlap_exchanges ? 2 : 1;
  Lowering(program, layout, given.ranks() > 0 ? given : one_stage(program.micro_batches, together), pipeline)
      .write();
}

void lower_forward(StepProgram& program, const RankLayout& layout, const PipelineOptions& pipeline) {
  const Schedule& given = pipeline.schedule;
  Lowering(program, layout, forward_only(given.ranks() > 0 ? given : one_stage(1), program.micro_batches),
           pipeline)
      .write();
}

}  // namespace stepforge
