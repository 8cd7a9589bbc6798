// SPDX-License-Identifier: Apache-2.0
#include "stepforge/modelspec/call_table.h"

#include <array>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/modelspec/calls/attention.h"
#include "stepforge/modelspec/calls/columns.h"
#include "stepforge/modelspec/calls/exchange.h"
#include "stepforge/modelspec/calls/experts.h"
#include "stepforge/modelspec/calls/latent_heads.h"
#include "stepforge/modelspec/calls/linear.h"
#include "stepforge/modelspec/calls/lookup.h"
#include "stepforge/modelspec/calls/loss.h"
#include "stepforge/modelspec/calls/norm.h"
#include "stepforge/modelspec/calls/residual.h"
#include "stepforge/modelspec/calls/rotary.h"
#include "stepforge/modelspec/calls/router.h"
#include "stepforge/modelspec/calls/swiglu.h"

namespace stepforge {

namespace {

constexpr std::array<CallRow, kCallKinds> kRows = {
    kRmsNormRow,  kLinearRow,   kBiasRow,      kExchangeRow,    kRotaryRow,     kAttentionRow,
    kToHeadsRow,  kToTokensRow, kSwigluRow,    kResidualAddRow, kAddRow,        kGatedAddRow,
    kLookupRow,   kSplitRow,    kConcatRow,    kLatentHeadsRow, kWideLinearRow, kRouteRow,
    kSortRowsRow, kExpertInRow, kExpertOutRow, kLossRow};

constexpr bool in_order() {
  for (std::size_t i = 0; i < kRows.size(); ++i)
    if (kRows[i].kind != static_cast<CallKind>(i)) return false;
  return true;
}
static_assert(in_order(), "rows are in the order of CallKind");

}  // namespace

const CallRow& row_of(CallKind kind) {
  return kRows.at(static_cast<std::size_t>(kind));
}

void require_width(const CallView& view, std::size_t operand, int64_t width) {
  if (operand < view.operands.size() && view.operands[operand].width == width) return;
  throw Error(format("{} ({}): operand {} has width {}, but {} is needed", view.call.name,
                     row_of(view.call.kind).name, operand,
                     operand < view.operands.size() ? view.operands[operand].width : 0, width));
}

void require_elements(const CallView& view, std::size_t weight, int64_t elements) {
  if (weight < view.call.weights.size() && view.call.weights[weight].elements() == elements) return;
  throw Error(format("{} ({}): weight {} has {} elements, but {} are needed", view.call.name,
                     row_of(view.call.kind).name, weight,
                     weight < view.call.weights.size() ? view.call.weights[weight].elements() : 0, elements));
}

}  // namespace stepforge
