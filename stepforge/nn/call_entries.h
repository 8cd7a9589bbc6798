// SPDX-License-Identifier: Apache-2.0
// What each kind of call (modelspec/call_kind.h) runs. No autograd.
#pragma once

#include <memory>
#include <span>

#include <ATen/core/Tensor.h>

#include "stepforge/kernels/divided.h"
#include "stepforge/kernels/loss_chunk.h"
#include "stepforge/kernels/rope.h"
#include "stepforge/modelspec/call_list.h"
#include "stepforge/nn/context.h"
#include "stepforge/nn/context_exchange.h"
#include "stepforge/nn/parameter.h"

namespace stepforge {

/// Of the losses in training, as in LossGradient (kernels/cross_entropy.h).
struct LossOptions {
  double z_weight = 0.0;
  double smoothing = 0.0;
  LossFunction function = {};
};

struct CallEntry;
/// Of all kinds of calls but kOperations, which blocks of your own run.
std::span<const CallEntry* const> call_entries();
/// Throws Error if the kind is not among them.
const CallEntry& entry_of(const CallKind& kind);

/// What calls use besides their operands and the batch.
struct LayerResources {
  std::shared_ptr<const RopeTable> rope = {};
  std::shared_ptr<const RopeTable> local_rope = {};  ///< of layers with a window
  TensorExchange tensor = {};
  ContextExchange exchange = {};
  LossOptions loss = {};
  /// What the calls run; proofs of layouts have other entries for some kinds (prove/exact_entries.h).
  const CallEntry& (*entry)(const CallKind&) = entry_of;
};

/// Tensors that a call writes, each allocated when it is first asked for: what a call does before needs no memory beside it.
class Written {
 public:
  virtual ~Written() = default;
  /// Whether the tensor is wanted.
  virtual bool wanted(std::size_t index) const = 0;
  virtual at::Tensor operator[](std::size_t index) const = 0;
};

/// The tensors of one call, each [rows, width], contiguous. Results and gradients may have the memory of an operand or gradient
/// where the row of the call allows it; what is not needed is undefined.
struct CallRun {
  const Call& call;
  std::span<Parameter* const> weights;
  const LayerResources& resources;
  const Context& context;
  bool trains;  ///< whether a backward pass follows
  std::span<const at::Tensor> operands;
  const Written& written;                    ///< results; in backward the gradients of operands
  std::span<const at::Tensor> results = {};  ///< in backward, as are the following
  std::span<const at::Tensor> gradients = {};
  at::Tensor summand = {};  ///< to be added to the gradient of the first operand

  Parameter& weight(std::size_t index) const { return *weights[index]; }
  /// The ranks over which gradients of weights are summed; null: this one only.
  const TensorExchange* summed() const { return call.sums_weight_gradients ? &resources.tensor : nullptr; }
};

struct CallEntry {
  const CallKind* kind;
  void (*forward)(const CallRun&);
  void (*backward)(const CallRun&);  ///< writes the gradients of operands, and contributes those of weights
};

}  // namespace stepforge
