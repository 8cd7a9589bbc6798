// SPDX-License-Identifier: Apache-2.0
// What a layer of multi-token prediction takes (catalog/mtp_layers.h).
#pragma once

#include <string>

#include "stepforge/nn/block.h"
#include "stepforge/nn/functions.h"

namespace stepforge {

/// Rows [later; own] of width 2 D: of token i, row i + `ahead` of `later` [N, D] if that is a token of the same document of
/// `batch`, otherwise 0, and row i of `own` [N, D]. `batch` must outlive the graph.
at::Tensor join_later(const at::Tensor& later, const at::Tensor& own, const BatchTensors& batch,
                      int64_t ahead);

/// {hidden, embedded} to hidden.
class MtpBlock : public Block {
 public:
  /// `prefix` is "layers.3.mtp"; `last_norm` is the norm of the head of the depth before.
  MtpBlock(const ParameterLookup& parameters, const std::string& prefix, const std::string& last_norm,
           const NormConstants& constants, int64_t ahead);
  Bundle forward(const Bundle& inputs, const Context& context) override;

 private:
  Parameter& embedding_norm_;
  Parameter& last_norm_;
  Parameter& hidden_norm_;
  Parameter& projection_;
  NormConstants constants_;
  int64_t ahead_;
};

}  // namespace stepforge
