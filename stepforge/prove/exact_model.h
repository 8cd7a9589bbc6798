// SPDX-License-Identifier: Apache-2.0
// A model whose training is exact in fp32, so that every way to run a step must give the same bits, in
// whatever order sums are computed.
//
// Weights are multiples of 1/4 in [-1, 1]. Activations are integers in [-4, 4]. Gradients of activations are
// such integers divided by kExactLabels, which is a power of two and the number of valid labels in each step. Of pairs of
// answers, whose number in each step is one too, the derivative of the loss by a log-probability or a score is a multiple of that.
// Layers are those of the families, whose calls round their results and gradients to these sets (exact_entries.h), token by
// token. So every sum fits into the 24 bits of fp32: products have at most 257 terms of 16 quarters, and weight gradients are
// sums of 16 for each token, or of a few hundred in experts, whose results are rounded only when they have been added up, so a
// step may have 2^15 tokens. Adapters add up to 2^14 units for each token in the worst case, so that with them a step should have at
// most about 1,000. After each update the masters are rounded to the set of weights.
#pragma once

#include <cstdint>

#include "stepforge/prove/exact_spec.h"
#include "stepforge/train/trainer.h"

namespace stepforge {

inline constexpr int64_t kExactRows = 24;     ///< the fewest per step; divisible by 1, 2, 3, 4, 6 and 8 ranks
inline constexpr int64_t kExactLabels = 128;  ///< valid labels per step; three consecutive rows have none
inline constexpr int64_t kExactPairs = 16;    ///< or answers or pairs of them, of rows that have one each
inline constexpr int64_t kExactAnswer = 4;    ///< tokens of each better answer

/// Rows of a step that can be divided by `parts`: the fewest that an exact model trains on.
constexpr int64_t exact_rows(int64_t parts) {
  return (kExactRows + parts - 1) / parts * parts;
}

/// Makes a trainer train an exact model of model.n_layers layers, with the head of model.head and the adapters of the configuration:
/// its specification, forward code and labels, and the rounding after each update. Call it before the trainer is built. A step has
/// kExactRows rows or more, each of at least 7 tokens, or 16 if has_mtp(model), whose number is no multiple of 5. A step with another
/// number of valid labels throws Error.
///
/// With a distillation.teacher the targets are those of exact_teacher.h.
///
/// With a preference.loss each row has one pair of answers, the better one of kExactAnswer tokens with the end of its text, or one judged
/// answer, or Error is thrown; kExactPairs of them remain in each step. The loss is a hinge with the reference, the baseline and the
/// cross-entropy of better answers that the configured one has, but without that of judged ones, whose tokens differ in number.
void use_exact_model(Trainer& trainer, ExactModel model);

}  // namespace stepforge
