// SPDX-License-Identifier: Apache-2.0
// What the calls of an exact model (exact_model.h) compute: other entries than nn/call_entries.h for the kinds whose results
// are no small integers. Products, scores, lookups, exchanges, and the order of rows of experts are those of nn.
//
//   rms_norm      x * weight                           rotary    q and k times their norms and +1 or -1 by position, v
//   swiglu        gate * up                            attention q + the sum of k + v over the keys that the query sees
//   gated_add     x + gate * y                         route     the experts with the largest logits, which are their weights
//   magnitude     y * m / (1 or 2, by the parity of the squared norm)
//   loss          half the squared distance of the logits, with those of an adapter, from 4 at the label, 1 to 3 at the targets of
//                 a teacher and 0 elsewhere; of pairs each token counts as much as their loss says
//
// Each result is rounded to an activation, and each gradient to one, where it is complete on its rank. Sums of two values are
// not rounded: of experts each may be a share of a token's.
#pragma once

#include "stepforge/nn/call_entries.h"

namespace stepforge {

const CallEntry& exact_entry_of(const CallKind& kind);

}  // namespace stepforge
