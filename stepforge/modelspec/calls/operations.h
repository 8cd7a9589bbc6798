// SPDX-License-Identifier: Apache-2.0
// operations(x, ...; weights) -> results: what a block of your own, in tensor operations with autograd, computes (nn/block.h). What
// rows of other calls derive, this one states.
#pragma once

#include "stepforge/modelspec/call_kind.h"

namespace stepforge {

struct OperationsAttributes {
  TypeRule rule = TypeRule::elementwise;
  std::vector<LayerValue> results = {};  ///< with what autograd keeps besides operands and results
  CallValues derivative_reads = {};      ///< what autograd keeps
  double flops = 0;                      ///< forward, per token
  CallWorkspace workspace = {};
  CallExchanges exchanges = {};
};

inline constexpr CallKind kOperations = {
    .name = "operations",
    .stated_rule = [](const CallView& view) { return view.attributes<OperationsAttributes>().rule; },
    .results = [](const CallView& view) { return view.attributes<OperationsAttributes>().results; },
    .derivative_reads =
        [](const CallView& view) { return view.attributes<OperationsAttributes>().derivative_reads; },
    .flops = [](const CallView& view) { return view.attributes<OperationsAttributes>().flops; },
    .workspace = [](const CallView& view) { return view.attributes<OperationsAttributes>().workspace; },
    .exchanges = [](const CallView& view) { return view.attributes<OperationsAttributes>().exchanges; },
};

}  // namespace stepforge
