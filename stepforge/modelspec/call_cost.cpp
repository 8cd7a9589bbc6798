// SPDX-License-Identifier: Apache-2.0
#include "stepforge/modelspec/call_cost.h"

#include <algorithm>
#include <span>
#include <utility>

#include "stepforge/modelspec/call_passes.h"
#include "stepforge/modelspec/call_program.h"
#include "stepforge/modelspec/calls/linear.h"
#include "stepforge/modelspec/calls/operations.h"
#include "stepforge/modelspec/calls/workspaces.h"

namespace stepforge {

namespace {

template <typename T>
const T& item(const std::vector<T>& list, int index) {
  return list[static_cast<std::size_t>(index)];
}

/// Whether each gradient, of weights and of operands, is another product of the size of the forward one.
bool makes_products(const CallInfo& info) {
  return info.kind().queued_operands != nullptr || info.rule() == TypeRule::loss;
}

double weight_flops(const CallInfo& info, const CostContext& context) {
  return makes_products(info) && !info.call->weights.empty() && info.call->weights.front().trained
             ? call_flops(info, context)
             : 0.0;
}

/// Whether the gradients of weights are computed at once although they are written later.
bool queues_results(const CallInfo& info) {
  const CallKind& kind = info.kind();
  const CallView view = info.view();
  return kind.queued_operands != nullptr && kind.queued_operands(view) == 0 && !kind.queues_gradient(view);
}

/// What lives while the steps of a list run. `live` counts from 0 at the beginning, so it falls below 0 when memory that
/// was there before is freed.
class Account {
 public:
  Account(const std::vector<CallInfo>& calls, const CallList& list, const BlockProgram& program,
          const CostContext& context)
      : calls_(calls), list_(list), program_(program), context_(context), there_(program.buffers.size()) {}

  int64_t bytes_of(int buffer) const {
    return elements_of(list_.value(item(program_.buffers, buffer)))
        .bytes(context_.tokens, context_.compute, context_.slices);
  }
  void have(const std::vector<int>& buffers) {
    for (const int buffer : buffers)
      if (buffer != kNoTensor) there_[static_cast<std::size_t>(buffer)] = true;
  }

  void run_forward() {
    for (const CallStep& step : program_.forward) compute(step);
  }
  /// `queue`: gradients of weights are computed later.
  void run_backward(bool queue) {
    queue_ = queue;
    for (const CallStep& step : program_.backward) {
      if (step.action == CallAction::backward)
        differentiate(step);
      else
        compute(step);
    }
    run_queue();
  }

  int64_t peak() const { return peak_; }
  int64_t queued() const { return queued_; }
  int64_t queued_saved() const { return queued_saved_; }
  int64_t weight_peak() const { return weight_peak_; }

 private:
  /// What a queue keeps for the gradients of the weights of one call.
  struct Pending {
    std::vector<int> buffers;
    int64_t workspace = 0;  ///< kept of the backward pass
    int64_t weights = 0;    ///< allocated when they are computed, with the former
  };

  int64_t allocate(const CallStep& step) {
    int64_t allocated = 0;
    for (const int buffer : step.writes) {
      if (buffer == kNoTensor || there_[static_cast<std::size_t>(buffer)]) continue;
      there_[static_cast<std::size_t>(buffer)] = true;
      allocated += bytes_of(buffer);
    }
    return allocated;
  }

  void free(const CallStep& step) {
    for (const int buffer : step.frees)
      if (!is_held(buffer)) live_ -= bytes_of(buffer);
  }

  bool is_held(int buffer) const {
    return std::ranges::any_of(std::span(pending_).subspan(run_),
                               [&](const Pending& p) { return std::ranges::count(p.buffers, buffer) > 0; });
  }

  void compute(const CallStep& step) {
    live_ += allocate(step);
    const int64_t extra =
        step.action == CallAction::forward ? item(calls_, step.call).workspace().forward.bytes(context_) : 0;
    peak_ = std::max(peak_, live_ + extra);
    free(step);
  }

  void differentiate(const CallStep& step) {
    const CallInfo& info = item(calls_, step.call);
    const CallWorkspace extra = info.workspace();
    const int64_t gradients = allocate(step);
    const int64_t input = gradients + extra.backward.bytes(context_);
    const int64_t weights = extra.weights.bytes(context_);
    if (queue_ && info.call->trains() && !info.call->is(kOperations)) {
      const int64_t kept = extra.queued.bytes(context_);
      const bool at_once = queues_results(info);
      peak_ = std::max(peak_, live_ + kept + (at_once ? std::max(input, weights) : input));
      hold(info, step, kept, at_once ? kept : weights);
    } else {
      peak_ = std::max(peak_, live_ + (extra.beside ? input + weights : std::max(input, weights)));
    }
    live_ += gradients;
    free(step);
  }

  void hold(const CallInfo& info, const CallStep& step, int64_t kept, int64_t weights) {
    Pending pending{{}, kept, weights};
    const CallView view = info.view();
    if (info.kind().queued_operands != nullptr) {
      const uint32_t operands = info.kind().queued_operands(view);
      for (std::size_t i = 0; i < info.operands.size(); ++i)
        if ((operands >> i & 1U) != 0) pending.buffers.push_back(step.reads[info.results.size() + i]);
      if (info.kind().queues_gradient(view)) pending.buffers.push_back(step.reads.front());
    }
    live_ += kept;
    queued_ += kept;
    for (const int buffer : pending.buffers) {
      if (is_held(buffer)) continue;
      queued_ += bytes_of(buffer);
      if (std::ranges::binary_search(program_.saved, buffer)) queued_saved_ += bytes_of(buffer);
    }
    pending_.push_back(std::move(pending));
  }

  void run_queue() {
    int64_t freed = 0;
    while (run_ < pending_.size()) {
      const Pending next = std::move(pending_[run_++]);
      weight_peak_ = std::max(weight_peak_, next.weights - next.workspace - freed);
      freed += next.workspace;
      for (const int buffer : next.buffers) freed += is_held(buffer) ? 0 : bytes_of(buffer);
    }
  }

  const std::vector<CallInfo>& calls_;
  const CallList& list_;
  const BlockProgram& program_;
  const CostContext& context_;
  std::vector<bool> there_;
  std::vector<Pending> pending_;
  std::size_t run_ = 0;  ///< how many of them have run
  bool queue_ = false;
  int64_t live_ = 0;
  int64_t peak_ = 0;
  int64_t queued_ = 0;
  int64_t queued_saved_ = 0;
  int64_t weight_peak_ = 0;
};

void add_sent(std::array<int64_t, kBlockAxes>& sums, int64_t& beside, const std::vector<Exchange>& exchanges,
              const CostContext& context) {
  for (const Exchange& exchange : exchanges) {
    const int64_t sent =
        exchange.elements.bytes(context.tokens, context.compute, context.slices) + exchange.weight_bytes;
    sums.at(static_cast<std::size_t>(exchange.axis)) += sent;
    if (exchange.beside) beside += sent;
  }
}

/// FLOPs and exchanges of the steps.
void add_work(BlockCost& cost, const std::vector<CallInfo>& calls, const BlockProgram& program,
              const CostContext& context) {
  for (const CallInfo& info : calls) {
    cost.forward_flops += call_flops(info, context);
    add_sent(cost.forward_exchange, cost.forward_beside, info.exchanges().forward, context);
  }
  for (const CallStep& step : program.backward) {
    if (step.call < 0) continue;
    const CallInfo& info = item(calls, step.call);
    const bool again = step.action == CallAction::forward;
    add_sent(cost.backward_exchange, cost.backward_beside,
             again ? info.exchanges().forward : info.exchanges().backward, context);
    const double flops = call_flops(info, context);
    const double weights = again ? 0.0 : weight_flops(info, context);
    cost.backward_weight_flops += weights;
    cost.backward_input_flops += again || makes_products(info) ? flops : 2.0 * flops;
  }
  cost.backward_flops = cost.backward_input_flops + cost.backward_weight_flops;
}

}  // namespace

double flops_of_keys(const CallInfo& info, int64_t length) {
  if (info.kind().flops_per_key == nullptr) return 0.0;
  const int64_t window = info.kind().window(info.view());
  return info.kind().flops_per_key(info.view()) *
         static_cast<double>(window > 0 ? std::min(window, length) : length);
}

double call_flops(const CallInfo& info, const CostContext& context) {
  double per_row = flops_of_keys(info, context.document_length);
  if (info.kind().flops != nullptr) per_row += info.kind().flops(info.view());
  // A product that gathers its input, or sums slices of its result, is of all tokens.
  const bool slice = !info.operands.empty() && info.operands.front().rows == Rows::slice &&
                     info.results.front().rows == Rows::slice;
  return per_row * static_cast<double>(context.tokens) / static_cast<double>(slice ? context.slices : 1);
}

BlockCost list_cost(const CallList& list, const CostContext& context,
                    const std::vector<std::string>& recomputed) {
  if (!recomputed.empty()) {
    CallList again = list;
    recompute_calls(again, recomputed);
    return list_cost(again, context);
  }
  const std::vector<CallInfo> calls = call_infos(list);
  const BlockProgram program = derive(list, calls, /*trains=*/true);
  const BlockProgram inference = derive(list, calls, /*trains=*/false);
  BlockCost cost;
  add_work(cost, calls, program, context);

  const Account sizes(calls, list, program, context);
  for (const int buffer : program.saved) cost.saved_bytes += sizes.bytes_of(buffer);
  for (const int buffer : program.outputs) cost.output_bytes += sizes.bytes_of(buffer);

  const auto forward_peak = [&](const BlockProgram& steps) {
    Account account(calls, list, steps, context);
    account.have(steps.inputs);
    account.run_forward();
    return account.peak();
  };
  cost.forward_peak_bytes = forward_peak(program);
  cost.inference_peak_bytes = forward_peak(inference);

  const auto backward = [&](bool queue) {
    Account account(calls, list, program, context);
    account.have(program.inputs);
    account.have(program.saved);
    account.have(program.output_gradients);
    account.run_backward(queue);
    return account;
  };
  cost.backward_peak_bytes = backward(/*queue=*/false).peak();
  const Account queued = backward(/*queue=*/true);
  cost.backward_input_peak_bytes = queued.peak();
  cost.backward_weight_peak_bytes = queued.weight_peak();
  cost.queued_bytes = queued.queued();
  cost.queued_saved_bytes = queued.queued_saved();
  return cost;
}

}  // namespace stepforge
