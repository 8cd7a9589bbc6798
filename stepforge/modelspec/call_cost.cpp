// SPDX-License-Identifier: Apache-2.0
#include "stepforge/modelspec/call_cost.h"

#include <algorithm>
#include <deque>
#include <iterator>
#include <utility>

#include "stepforge/modelspec/call_passes.h"
#include "stepforge/modelspec/call_program.h"
#include "stepforge/modelspec/calls/linear.h"
#include "stepforge/modelspec/calls/workspaces.h"

namespace stepforge {

namespace {

template <typename T>
const T& item(const std::vector<T>& list, int index) {
  return list[static_cast<std::size_t>(index)];
}

double forward_flops(const CallInfo& info, const CostContext& context) {
  const CallView view = info.view();
  double per_row = info.row->flops != nullptr ? info.row->flops(view) : 0.0;
  if (info.row->flops_per_key != nullptr) {
    const int64_t window = info.row->window(view);
    const int64_t length = context.document_length;
    per_row +=
        info.row->flops_per_key(view) * static_cast<double>(window > 0 ? std::min(window, length) : length);
  }
  // A product that gathers its input, or sums slices of its result, is of all tokens.
  const bool slice = info.operands.front().rows == Rows::slice && info.results.front().rows == Rows::slice;
  return per_row * static_cast<double>(context.tokens) / static_cast<double>(slice ? context.slices : 1);
}

/// Linear calls compute each gradient of weights by another product of the size of the forward one.
double weight_flops(const CallInfo& info, const CostContext& context) {
  return info.row->queued_operands != nullptr && info.call->trains() ? forward_flops(info, context) : 0.0;
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
    return std::ranges::any_of(pending_,
                               [&](const Pending& p) { return std::ranges::count(p.buffers, buffer) > 0; });
  }

  CallWorkspace workspace(const CallInfo& info) const {
    return info.row->workspace != nullptr ? info.row->workspace(info.view()) : CallWorkspace();
  }

  void compute(const CallStep& step) {
    live_ += allocate(step);
    const int64_t extra =
        step.action == CallAction::forward ? workspace(item(calls_, step.call)).forward.bytes(context_) : 0;
    peak_ = std::max(peak_, live_ + extra);
    free(step);
  }

  void differentiate(const CallStep& step) {
    const CallInfo& info = item(calls_, step.call);
    const CallWorkspace extra = workspace(info);
    const int64_t gradients = allocate(step);
    const int64_t input = gradients + extra.backward.bytes(context_);
    const int64_t weights = extra.weights.bytes(context_);
    if (queue_ && info.call->trains()) {
      const int64_t kept = extra.queued.bytes(context_);
      peak_ = std::max(peak_, live_ + input + kept);
      hold(info, step, kept, weights);
    } else {
      peak_ = std::max(peak_, live_ + (extra.beside ? input + weights : std::max(input, weights)));
    }
    live_ += gradients;
    free(step);
  }

  void hold(const CallInfo& info, const CallStep& step, int64_t kept, int64_t weights) {
    Pending pending{{}, kept, weights};
    const CallView view = info.view();
    if (info.row->queued_operands != nullptr) {
      const uint32_t operands = info.row->queued_operands(view);
      for (std::size_t i = 0; i < info.operands.size(); ++i)
        if ((operands >> i & 1U) != 0) pending.buffers.push_back(step.reads[info.results.size() + i]);
      if (info.row->queues_gradient(view)) pending.buffers.push_back(step.reads.front());
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
    while (!pending_.empty()) {
      const Pending next = std::move(pending_.front());
      pending_.pop_front();
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
  std::deque<Pending> pending_;
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

CallExchanges exchanges_of(const CallInfo& info) {
  return info.row->exchanges != nullptr ? info.row->exchanges(info.view()) : CallExchanges();
}

/// FLOPs and exchanges of the steps.
void add_work(BlockCost& cost, const std::vector<CallInfo>& calls, const BlockProgram& program,
              const CostContext& context) {
  for (const CallInfo& info : calls) {
    cost.forward_flops += forward_flops(info, context);
    add_sent(cost.forward_exchange, cost.forward_beside, exchanges_of(info).forward, context);
  }
  for (const CallStep& step : program.backward) {
    if (step.call < 0) continue;
    const CallInfo& info = item(calls, step.call);
    const bool again = step.action == CallAction::forward;
    add_sent(cost.backward_exchange, cost.backward_beside,
             again ? exchanges_of(info).forward : exchanges_of(info).backward, context);
    const double flops = forward_flops(info, context);
    const double weights = again ? 0.0 : weight_flops(info, context);
    cost.backward_weight_flops += weights;
    // Frozen products count as trained ones, so that freezing does not move the cut of a pipeline.
    cost.backward_input_flops += again ? flops : 2.0 * flops - weights;
  }
  cost.backward_flops = cost.backward_input_flops + cost.backward_weight_flops;
}

}  // namespace

BlockCost list_cost(const CallList& list, const CostContext& context,
                    const std::vector<std::string>& recomputed) {
  CallList kept = list;
  recompute_regions(kept, recomputed);
  const std::vector<CallInfo> calls = call_infos(kept);
  const BlockProgram program = derive(kept, /*trains=*/true);
  const BlockProgram inference = derive(kept, /*trains=*/false);
  BlockCost cost;
  add_work(cost, calls, program, context);

  const Account sizes(calls, kept, program, context);
  for (const int buffer : program.saved) cost.saved_bytes += sizes.bytes_of(buffer);
  for (const int buffer : program.outputs) cost.output_bytes += sizes.bytes_of(buffer);

  const auto forward_peak = [&](const BlockProgram& steps) {
    Account account(calls, kept, steps, context);
    account.have(steps.inputs);
    account.run_forward();
    return account.peak();
  };
  cost.forward_peak_bytes = forward_peak(program);
  cost.inference_peak_bytes = forward_peak(inference);

  const auto backward = [&](bool queue) {
    Account account(calls, kept, program, context);
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

namespace {

/// Moves the exchange of `kind`, if there is one, to a call of its own.
std::vector<Exchange> taken(std::vector<Exchange>& exchanges, ExchangeKind kind) {
  std::vector<Exchange> found;
  const auto exchange = std::ranges::find(exchanges, kind, &Exchange::kind);
  if (exchange == exchanges.end()) return found;
  found.push_back(*exchange);
  exchanges.erase(exchange);
  return found;
}

CallSpec exchange_spec(const char* name, std::vector<Exchange> forward, std::vector<Exchange> backward) {
  CallSpec spec{.name = name, .rule = TypeRule::exchange};
  spec.forward_exchanges = std::move(forward);
  spec.backward_exchanges = std::move(backward);
  return spec;
}

/// A linear call that keeps a slice of its input, of which backward gathers the whole.
void keep_slice(CallSpec& linear, int64_t width) {
  linear.saves.slice_compute = width;
  // The whole is there beside both products, and a queue keeps it.
  for (Workspace* workspace : {&linear.backward_workspace, &linear.weight_workspace, &linear.queued})
    workspace->token.compute += width;
  linear.queued_input = {};
  linear.backward_exchanges.push_back({BlockAxis::tensor, ExchangeKind::gather, {width}});
}

/// Adds the sizes of a list that is a region of a block of tensor operations, whose cost is block_cost() of its regions.
class Sizes {
 public:
  Sizes(const CallList& list, const std::vector<CallInfo>& calls, bool keeps_input)
      : list_(list), calls_(calls), program_(derive(list, /*trains=*/true)) {
    kept_ = program_.saved;
    if (keeps_input) kept_.insert(kept_.end(), program_.inputs.begin(), program_.inputs.end());
  }

  void add(CallSpec& spec, int index) const {
    const CallInfo& info = item(calls_, index);
    for (const CallStep& step : program_.forward)
      if (step.call == index) add_results(spec, step);
    for (std::size_t s = 0; s < program_.backward.size(); ++s) {
      const CallStep& step = program_.backward[s];
      if (step.call != index || step.action != CallAction::backward) continue;
      for (const int made : step.writes)
        if (made != kNoTensor && std::ranges::count(step.reads, made) == 0) add_to(spec.gradient, made);
      for (const int kept : kept_)
        if (last_reader(kept) == s) add_to(spec.saves, kept);
      add_queued(spec, info, step);
    }
    if (info.row->workspace == nullptr) return;
    const CallWorkspace workspace = info.row->workspace(info.view());
    spec.forward_workspace = workspace.forward;
    spec.backward_workspace = workspace.backward;
    spec.weight_workspace = workspace.weights;
    spec.weights_beside = workspace.beside;
    spec.queued = workspace.queued;
  }

 private:
  void add_to(Elements& sum, int buffer) const {
    sum = sum + elements_of(list_.value(item(program_.buffers, buffer)));
  }

  void add_results(CallSpec& spec, const CallStep& step) const {
    for (std::size_t r = 0; r < step.writes.size(); ++r)
      if (std::ranges::count(step.reads, step.writes[r]) == 0)
        add_to(r == 0 ? spec.output : spec.extra, step.writes[r]);
  }

  void add_queued(CallSpec& spec, const CallInfo& info, const CallStep& step) const {
    if (info.row->queued_operands == nullptr) return;
    const uint32_t queued = info.row->queued_operands(info.view());
    for (std::size_t i = 0; i < info.operands.size(); ++i) {
      if ((queued >> i & 1U) == 0) continue;
      const int operand = step.reads[info.results.size() + i];
      add_to(std::ranges::count(kept_, operand) > 0 ? spec.queued_saves : spec.queued_input, operand);
    }
  }

  std::size_t last_reader(int buffer) const {
    std::size_t last = program_.backward.size();
    for (std::size_t s = 0; s < program_.backward.size(); ++s)
      if (std::ranges::count(program_.backward[s].reads, buffer) > 0) last = s;
    return last;
  }

  const CallList& list_;
  const std::vector<CallInfo>& calls_;
  BlockProgram program_;
  std::vector<int> kept_;
};

}  // namespace

std::vector<RegionSpec> regions_of(const CallList& list, bool keeps_input) {
  std::vector<RegionSpec> regions;
  std::vector<const Call*> makers(list.values.size());
  const std::vector<CallInfo> infos = call_infos(list);
  const Sizes sizes(list, infos, keeps_input);
  for (std::size_t index = 0; index < infos.size(); ++index) {
    const CallInfo& info = infos[index];
    const Call& call = *info.call;
    for (const int result : call.results) makers[static_cast<std::size_t>(result)] = &call;
    if (regions.empty() || regions.back().name != call.region) regions.push_back({.name = call.region});
    std::vector<CallSpec>& calls = regions.back().calls;
    if (call.kind == CallKind::residual_add) regions.back().residual = true;
    const CallView view = info.view();
    CallSpec spec{.name = call.name, .rule = info.row->rule};
    for (const CallWeight& weight : call.weights) spec.weights.push_back(weight.name);
    if (info.row->flops != nullptr) spec.flops = info.row->flops(view);
    if (info.row->flops_per_key != nullptr) {
      spec.flops_per_key = info.row->flops_per_key(view);
      spec.window = info.row->window(view);
    }
    sizes.add(spec, static_cast<int>(index));
    CallExchanges exchanges = exchanges_of(info);
    std::vector<CallSpec> after;
    if (call.kind == CallKind::linear) {
      const int64_t width = info.operands.front().width;
      const Call* maker = makers[static_cast<std::size_t>(call.operands.front())];
      if (call.trains() && maker != nullptr && maker->again && maker->kind == CallKind::exchange)
        keep_slice(spec, width);
      const LinearAttributes attributes = linear_attributes(call);
      if (attributes.arriving) {
        calls.push_back(exchange_spec("enter", taken(exchanges.forward, ExchangeKind::gather),
                                      taken(exchanges.backward, ExchangeKind::sum_slice)));
        if (call.trains()) spec.saves.slice_compute = width;
        spec.backward_exchanges = taken(exchanges.backward, ExchangeKind::gather);
      }
      if (attributes.leaving)
        after.push_back(exchange_spec("leave", std::move(exchanges.forward), std::move(exchanges.backward)));
    } else {
      spec.forward_exchanges = std::move(exchanges.forward);
      spec.backward_exchanges = std::move(exchanges.backward);
    }
    calls.push_back(std::move(spec));
    std::ranges::move(after, std::back_inserter(calls));
  }
  return regions;
}

}  // namespace stepforge
