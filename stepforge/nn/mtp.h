// SPDX-License-Identifier: Apache-2.0
// What a layer of multi-token prediction takes (catalog/mtp_layers.h).
#pragma once

#include <string>

#include "stepforge/nn/block.h"
#include "stepforge/nn/functions.h"

namespace stepforge {

/// Rows [later; own] of width 2 D of two tensors [N, D].
at::Tensor join_later(const at::Tensor& later, const at::Tensor& own);

/// {hidden, embedding of the token further ahead} to hidden, all of a slice of the tokens if `tensor` says so.
class MtpBlock : public Block {
 public:
  /// `prefix` is "layers.3.mtp"; `last_norm` is the norm of the head of the depth before.
  MtpBlock(const ParameterLookup& parameters, const std::string& prefix, const std::string& last_norm,
           const NormConstants& constants, TensorExchange tensor = {});
  Bundle forward(const Bundle& inputs, const Context& context) override;

 private:
  Parameter& embedding_norm_;
  Parameter& last_norm_;
  Parameter& hidden_norm_;
  Parameter& projection_;
  NormConstants constants_;
  TensorExchange tensor_;
};

}  // namespace stepforge
