// SPDX-License-Identifier: Apache-2.0
// exchange(x) -> x, between the ranks that hold the parts of a layer (tensor parallelism), or nothing in one direction.
#pragma once

#include <optional>

#include "stepforge/modelspec/calls/workspaces.h"

namespace stepforge {

struct ExchangeAttributes {
  std::optional<ExchangeKind> forward = {};   ///< of x: sum, gather, sum_slice or slice
  std::optional<ExchangeKind> backward = {};  ///< the same of the gradient of the result
};

namespace exchange_row {

inline std::vector<Exchange> exchanged(const std::optional<ExchangeKind>& kind, int64_t width) {
  if (!kind) return {};
  return {{BlockAxis::tensor, *kind, {*kind == ExchangeKind::slice ? 0 : width}}};
}

}  // namespace exchange_row

inline constexpr CallKind kExchange = {
    .name = "exchange",
    .rule = TypeRule::exchange,
    .results =
        [](const CallView& view) {
          LayerValue made = view.operands[0];
          const auto& forward = view.attributes<ExchangeAttributes>().forward;
          if (forward == ExchangeKind::gather) made.rows = Rows::tokens;
          if (forward == ExchangeKind::sum_slice || forward == ExchangeKind::slice) made.rows = Rows::slice;
          return std::vector<LayerValue>{made};
        },
    .overwrites = [](const CallView&) { return 0; },
    .aliases_operand =
        [](const CallView& view) { return view.attributes<ExchangeAttributes>().forward ? kNoOperand : 0; },
    .passes_gradient =
        [](const CallView& view) { return view.attributes<ExchangeAttributes>().backward ? 0U : 1U; },
    .gradient_overwrites = 0,
    .exchanges =
        [](const CallView& view) {
          const auto& attributes = view.attributes<ExchangeAttributes>();
          const int64_t width = view.operands[0].width;
          return CallExchanges{exchange_row::exchanged(attributes.forward, width),
                               exchange_row::exchanged(attributes.backward, width)};
        },
    .text =
        [](const CallView& view) {
          const auto& attributes = view.attributes<ExchangeAttributes>();
          const auto name = [](const std::optional<ExchangeKind>& kind) {
            return kind ? std::string(exchange_name(*kind)) : std::string("nothing");
          };
          return name(attributes.forward) + "; backward: " + name(attributes.backward);
        },
};

}  // namespace stepforge
