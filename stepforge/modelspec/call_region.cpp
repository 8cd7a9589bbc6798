// SPDX-License-Identifier: Apache-2.0
#include "stepforge/modelspec/call_region.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "stepforge/modelspec/call_program.h"
#include "stepforge/modelspec/calls/linear.h"

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
  CallSpec spec{.name = call.name, .rule = info.kind().rule};
  for (const CallWeight& weight : call.weights) spec.weights.push_back(weight.name);
  if (info.kind().flops != nullptr) spec.flops = info.kind().flops(view);
  if (info.kind().flops_per_key != nullptr) {
    spec.flops_per_key = info.kind().flops_per_key(view);
    spec.window = info.kind().window(view);
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
  spec.keeps_slice = keeps_slice;
  if (keeps_slice && !attributes.gathers_input)
    spec.backward_exchanges.push_back(
        {BlockAxis::tensor, ExchangeKind::gather, {info.operands.front().width}});
  specs.push_back(std::move(spec));
  if (attributes.scatters_result)
    specs.push_back(exchange_spec("leave", std::move(after.forward), std::move(after.backward)));
  return specs;
}

/// Of a linear call whose input, or what it was gathered from, is a slice.
bool keeps_slice(const Call& call, const Call* maker) {
  return call.is(kLinear) && call.trains() &&
         (linear_attributes(call).gathers_input ||
          (maker != nullptr && maker->recompute && maker->is(kExchange)));
}

}  // namespace

RegionSpec region_of(std::string name, CallList list, CallList generation) {
  RegionSpec region{.name = std::move(name)};
  std::vector<const Call*> makers(list.values.size());
  auto next = static_cast<int>(list.values.size());  // between the exchanges of one call and the call
  for (const CallInfo& info : call_infos(list)) {
    const Call& call = *info.call;
    if (info.results.front().type == ElementType::int32) continue;  // indices have no type
    for (const int result : call.results) makers[static_cast<std::size_t>(result)] = &call;
    const Call* maker =
        call.operands.empty() ? nullptr : makers[static_cast<std::size_t>(call.operands.front())];
    std::vector<CallSpec> specs = specs_of(info, keeps_slice(call, maker));
    std::vector<int> operands;
    for (std::size_t i = 0; i < call.operands.size(); ++i)
      if (info.operands[i].type != ElementType::int32) operands.push_back(call.operands[i]);
    for (CallSpec& spec : specs) {
      spec.operands = operands;
      spec.results = &spec == &specs.back() ? call.results : std::vector{next++};
      operands = {spec.results.front()};
    }
    std::ranges::move(specs, std::back_inserter(region.calls));
  }
  region.list = std::move(list);
  region.generation = std::move(generation);
  return region;
}

}  // namespace stepforge
