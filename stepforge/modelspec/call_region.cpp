// SPDX-License-Identifier: Apache-2.0
#include "stepforge/modelspec/call_region.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "stepforge/modelspec/call_program.h"
#include "stepforge/modelspec/calls/linear.h"
#include "stepforge/modelspec/calls/workspaces.h"

namespace stepforge {

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

/// The calls of the view that stand for one call of the list.
std::vector<CallSpec> specs_of(const CallInfo& info, bool keeps_slice) {
  const Call& call = *info.call;
  const CallView view = info.view();
  CallSpec spec{.name = call.name, .rule = info.row->rule};
  for (const CallWeight& weight : call.weights) spec.weights.push_back(weight.name);
  if (info.row->flops != nullptr) spec.flops = info.row->flops(view);
  if (info.row->flops_per_key != nullptr) {
    spec.flops_per_key = info.row->flops_per_key(view);
    spec.window = info.row->window(view);
  }
  CallExchanges exchanges = info.exchanges();
  const LinearAttributes attributes = linear_attributes(call);
  std::vector<CallSpec> specs;
  if (attributes.gathers_input)
    specs.push_back(exchange_spec("enter", taken(exchanges.forward, ExchangeKind::gather),
                                  taken(exchanges.backward, ExchangeKind::sum_slice)));
  CallExchanges after;
  if (attributes.scatters_result) {
    after.forward = taken(exchanges.forward, ExchangeKind::sum_slice);
    after.backward = std::exchange(exchanges.backward, {});
  }
  spec.forward_exchanges = std::move(exchanges.forward);
  spec.backward_exchanges = std::move(exchanges.backward);
  if (keeps_slice) {
    const int64_t width = info.operands.front().width;
    spec.saves.slice_compute = width;
    if (!attributes.gathers_input)
      spec.backward_exchanges.push_back({BlockAxis::tensor, ExchangeKind::gather, {width}});
  }
  specs.push_back(std::move(spec));
  if (attributes.scatters_result)
    specs.push_back(exchange_spec("leave", std::move(after.forward), std::move(after.backward)));
  return specs;
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
    const CallInfo& info = calls_[static_cast<std::size_t>(index)];
    const bool keeps_slice = spec.saves.slice_compute > 0;
    spec.saves = {};
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
    const CallWorkspace workspace = info.workspace();
    spec.forward_workspace = workspace.forward;
    spec.backward_workspace = workspace.backward;
    spec.weight_workspace = workspace.weights;
    spec.weights_beside = workspace.beside;
    spec.queued = workspace.queued;
    if (keeps_slice && !linear_attributes(*info.call).gathers_input)
      add_whole(spec, info.operands.front().width);
  }

 private:
  /// The whole of a slice is there beside both products of backward, and a queue keeps it.
  static void add_whole(CallSpec& linear, int64_t width) {
    linear.saves.slice_compute = width;
    for (Workspace* workspace : {&linear.backward_workspace, &linear.weight_workspace, &linear.queued})
      workspace->token.compute += width;
    linear.queued_input = {};
  }

  void add_to(Elements& sum, int buffer) const {
    sum = sum + elements_of(list_.value(program_.buffers[static_cast<std::size_t>(buffer)]));
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

RegionSpec region_of(CallList list, CallList generation) {
  RegionSpec region{.name = list.calls.front().region};
  std::vector<const Call*> makers(list.values.size());
  for (const CallInfo& info : call_infos(list)) {
    const Call& call = *info.call;
    for (const int result : call.results) makers[static_cast<std::size_t>(result)] = &call;
    region.residual = region.residual || call.kind == CallKind::residual_add;
    // It saves a slice of what backward gathers.
    const Call* maker = makers[static_cast<std::size_t>(call.operands.front())];
    const bool keeps_slice = call.kind == CallKind::linear && call.trains() &&
                             (linear_attributes(call).gathers_input ||
                              (maker != nullptr && maker->recompute && maker->kind == CallKind::exchange));
    std::ranges::move(specs_of(info, keeps_slice), std::back_inserter(region.calls));
  }
  region.list = std::move(list);
  region.generation = std::move(generation);
  return region;
}

void add_sizes(RegionSpec& region, bool keeps_input) {
  const std::vector<CallInfo> infos = call_infos(region.list);
  const Sizes sizes(region.list, infos, keeps_input);
  for (CallSpec& spec : region.calls) {
    const auto call = std::ranges::find(region.list.calls, spec.name, &Call::name);
    if (call != region.list.calls.end()) sizes.add(spec, static_cast<int>(call - region.list.calls.begin()));
  }
}

}  // namespace stepforge
