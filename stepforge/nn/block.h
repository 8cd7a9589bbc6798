// SPDX-License-Identifier: Apache-2.0
// The modules that the executor runs: blocks, and the head that computes loss or logits.
#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros_like.h>

#include "stepforge/nn/context.h"
#include "stepforge/nn/parameter.h"

namespace stepforge {

/// The tensors that a block takes or makes, in the order of BlockSpec::inputs or outputs; each [tokens, width].
using Bundle = std::vector<at::Tensor>;

/// Returns the gradients of the inputs from those of the outputs, and contributes those of the parameters. Runs once. Integers
/// have no gradient: an undefined tensor.
using BackwardPass = std::function<Bundle(const Bundle& output_gradients)>;

struct ForwardPass {
  Bundle outputs;
  BackwardPass backward = {};  ///< null if none follows
};

/// The gradient of an input of a block: zero if the block does not use it, undefined for integers.
inline at::Tensor input_gradient(at::Tensor gradient, const at::Tensor& input) {
  return gradient.defined() || !input.is_floating_point() ? std::move(gradient) : at::zeros_like(input);
}

/// Every block except the head. The first one takes an empty bundle and reads the batch's tokens.
class Block {
 public:
  virtual ~Block() = default;
  /// `trains`: a backward pass follows. Outputs belong to no graph of autograd.
  virtual ForwardPass forward(const Bundle& inputs, const Context& context, bool trains) = 0;
};

struct LossResult {
  /// [tokens] fp32 or fp64: cross-entropy, natural log; 0 for an ignored label. Of a reward model minus the score of each token.
  at::Tensor token_loss;
  at::Tensor logits;       ///< [tokens, vocab] fp32 if asked for
  Bundle input_gradients;  ///< of the sum of token_loss * scale, if gradients were asked for
  /// [tokens, Context::top] fp32 and int32 if asked for: the largest logits, in descending order, where there is a label, and their
  /// tokens.
  at::Tensor top_logits = {};
  at::Tensor top_ids = {};
};

class Head {
 public:
  virtual ~Head() = default;
  /// The loss, and the gradients of its sum * scale for the input and the head's own parameters. `scale` is
  /// a scalar (kernels/scalars.h).
  virtual LossResult loss_with_gradients(const Bundle& inputs, const Context& context,
                                         const at::Tensor& scale) = 0;
  virtual LossResult loss(const Bundle& inputs, const Context& context, bool with_logits) = 0;
  /// [rows, vocab] fp32: the logits of each row's last position.
  virtual at::Tensor last_logits(const Bundle& inputs, const Context& context) = 0;
};

/// A model's forward code bound to its parameters: the blocks of a ModelSpec, or of a part of it, in order. A part of a
/// pipeline without the last stage has no head.
struct Model {
  std::vector<std::unique_ptr<Block>> blocks;  ///< without heads
  std::vector<std::unique_ptr<Head>> heads;    ///< the first is the model's; others are trained with it
};

/// Returns a parameter by its name in the specification. Throws Error if there is none.
using ParameterLookup = std::function<Parameter&(std::string_view name)>;

}  // namespace stepforge
