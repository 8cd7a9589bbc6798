// SPDX-License-Identifier: Apache-2.0
// The forward code of a model, from its specification.
#pragma once

#include <cstdint>

#include "stepforge/modelspec/model_spec.h"
#include "stepforge/nn/block.h"
#include "stepforge/nn/call_entries.h"

namespace stepforge {

struct ForwardOptions {
  int64_t context_length = 0;     ///< positions that the rotary tables cover
  int64_t row_length = 0;         ///< decides which factors of longrope apply; 0: context_length
  ContextExchange exchange = {};  ///< if ranks hold parts of each row
  TensorExchange tensor =
      {};  ///< if `parameters` are this rank's parts of tensors that are divided over ranks
  LossOptions loss = {};
  at::Device device = at::kCPU;                           ///< of the parameters
  const CallEntry& (*entry)(const CallKind&) = entry_of;  ///< LayerResources::entry
};

/// The forward code of the blocks of a model or of a part of it, bound to `parameters`, which are looked up by the names of the
/// specification. A block computes the same whichever others there are. Throws Error if a block is no list of calls.
Model make_model(const ModelSpec& spec, const ParameterLookup& parameters, const ForwardOptions& options);

}  // namespace stepforge
