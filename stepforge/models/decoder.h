// SPDX-License-Identifier: Apache-2.0
// The model code of decoders. All families share it; the catalog states how they differ.
#pragma once

#include <cstdint>
#include <vector>

#include "stepforge/config/config.h"
#include "stepforge/modelspec/model_spec.h"
#include "stepforge/nn/block.h"
#include "stepforge/nn/call_entries.h"
#include "stepforge/nn/context_exchange.h"

namespace stepforge {

struct ForwardOptions {
  int64_t context_length = 0;     ///< positions that the rotary table covers
  int64_t loss_chunk = 0;         ///< tokens whose logits are in memory at once; 0: chosen by vocabulary size
  ContextExchange exchange = {};  ///< if ranks hold parts of each row
  TensorExchange tensor =
      {};  ///< if `parameters` are this rank's parts of tensors that are divided over ranks
  double z_loss_weight = 0.0;    ///< training.z_loss_weight
  double label_smoothing = 0.0;  ///< training.label_smoothing
  LossFunction loss = {};        ///< training.loss; empty: the cross-entropy
  int64_t row_length = 0;        ///< decides which factors of longrope apply; 0: context_length
};

/// The forward code of `blocks`, those of a ModelSpec of `config` or of a part of it, bound to `parameters`, which
/// are looked up by the names of the specification (catalog/decoder_spec.h). A block computes the same whichever
/// others are built. Throws UsageError for an unknown family.
Model make_model(const ModelConfig& config, const std::vector<BlockSpec>& blocks,
                 const ParameterLookup& parameters, const ForwardOptions& options);

/// The same for all blocks.
Model make_model(const ModelConfig& config, const ParameterLookup& parameters, const ForwardOptions& options);

}  // namespace stepforge
