// SPDX-License-Identifier: Apache-2.0
// operations(x, ...; weights) -> results: tensor operations with autograd (nn/autograd_block.h). What rows of other calls derive,
// this one states, so a block of such calls is planned, priced and checked like any other.
//
// One call for each function of the block: its results live until it returns. What autograd keeps besides operands and results is
// a further result, not differentiable, that the derivative reads. What the function and its derivative allocate while they run,
// the gradients of its weights included, is workspace.
#pragma once

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/modelspec/call_kind.h"

namespace stepforge {

struct OperationsAttributes {
  TypeRule rule = TypeRule::elementwise;
  std::vector<LayerValue> results;
  CallValues derivative_reads = {};
  double flops = 0;          ///< forward, per token
  double flops_per_key = 0;  ///< of attention: the same for each key that a token sees
  int64_t window = 0;        ///< of attention: the most keys that a token sees; 0: all
  CallWorkspace workspace = {};
  CallExchanges exchanges = {};
};

inline constexpr CallKind kOperations = {
    .name = "operations",
    .stated_rule = [](const CallView& view) { return view.attributes<OperationsAttributes>().rule; },
    .results =
        [](const CallView& view) {
          const auto& results = view.attributes<OperationsAttributes>().results;
          if (results.empty()) throw Error(format("{} (operations): states no result", view.call.name));
          return results;
        },
    .derivative_reads =
        [](const CallView& view) { return view.attributes<OperationsAttributes>().derivative_reads; },
    .flops = [](const CallView& view) { return view.attributes<OperationsAttributes>().flops; },
    .flops_per_key =
        [](const CallView& view) { return view.attributes<OperationsAttributes>().flops_per_key; },
    .window = [](const CallView& view) { return view.attributes<OperationsAttributes>().window; },
    .workspace = [](const CallView& view) { return view.attributes<OperationsAttributes>().workspace; },
    .exchanges = [](const CallView& view) { return view.attributes<OperationsAttributes>().exchanges; },
};

}  // namespace stepforge
