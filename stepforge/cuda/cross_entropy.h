// SPDX-License-Identifier: Apache-2.0
// The losses of kernels/cross_entropy.h on a GPU, of a chunk of tokens whose logits are in memory.
//
// A label that is neither -100 (ignored) nor in the vocabulary cannot throw here: the loss of its token is NaN, which the step's
// flag of finite numbers shows.
#pragma once

#include <cstdint>

#include "stepforge/base/dtype.h"
#include "stepforge/cuda/stream.h"

namespace stepforge::cuda {

/// LossGradient of kernels/cross_entropy.h. All pointers are to device memory.
struct LossGradient {
  const double* scale = nullptr;  ///< null: no gradients
  double z_weight = 0.0;
  const float* weights = nullptr;  ///< [rows]; null: all are 1
  double cap = 0.0;                ///< the logits are capped already (cap_logits())
  double smoothing = 0.0;          ///< changes the loss too
  double label_share = 1.0;  ///< of the target distribution, before smoothing; changes the gradient only
  double share = 1.0;        ///< of the cross-entropy in the gradient, beside the whole z-loss
};

/// The columns [begin, begin + width) of a vocabulary of `size` tokens. size = 0: of `width` tokens.
struct VocabularyPart {
  int64_t begin = 0;
  int64_t size = 0;
};

/// logits: [rows, width] of `type`, fp32 or bf16; with gradient.scale overwritten by their gradient, exactly 0 in ignored
/// rows. labels: [rows]. token_loss: [rows], written.
void cross_entropy(DType type, void* logits, const int64_t* labels, int64_t rows, int64_t width,
                   const LossGradient& gradient, float* token_loss, Stream stream);

/// logits = cap * tanh(logits / cap), in place.
void cap_logits(DType type, void* logits, int64_t elements, double cap, Stream stream);

// The same for logits of a part of the vocabulary, in three stages (kernels/kernel_list.h). Between them the caller combines
// `largest`, then `terms`, over the ranks that hold the other parts.

/// largest: [rows], written; the largest logit of each row.
void part_maxima(DType type, const void* logits, int64_t rows, int64_t width, float* largest, Stream stream);

/// terms: [2, rows], written: the sum of exp(logit - largest), and this part's share of the expected logit - largest.
void part_terms(DType type, const void* logits, const int64_t* labels, int64_t rows, int64_t width,
                const VocabularyPart& part, const float* largest, double smoothing, double* terms,
                Stream stream);

/// largest, terms: of the whole vocabulary. The rest is as in cross_entropy().
void part_losses(DType type, void* logits, const int64_t* labels, int64_t rows, int64_t width,
                 const VocabularyPart& part, const float* largest, const double* terms,
                 const LossGradient& gradient, float* token_loss, Stream stream);

}  // namespace stepforge::cuda
