// SPDX-License-Identifier: Apache-2.0
#include "stepforge/modelspec/call_kind.h"

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

void require_width(const CallView& view, std::size_t operand, int64_t width) {
  if (operand < view.operands.size() && view.operands[operand].width == width) return;
  throw Error(format("{} ({}): operand {} has width {}, but {} is needed", view.call.name,
                     view.call.kind->name, operand,
                     operand < view.operands.size() ? view.operands[operand].width : 0, width));
}

void require_elements(const CallView& view, std::size_t weight, int64_t elements) {
  if (weight < view.call.weights.size() && view.call.weights[weight].elements() == elements) return;
  throw Error(format("{} ({}): weight {} has {} elements, but {} are needed", view.call.name,
                     view.call.kind->name, weight,
                     weight < view.call.weights.size() ? view.call.weights[weight].elements() : 0, elements));
}

}  // namespace stepforge
