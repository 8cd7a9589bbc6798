// SPDX-License-Identifier: Apache-2.0
// The mean loss of each depth of multi-token prediction over the steps between two log records.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "stepforge/comm/communicator.h"
#include "stepforge/metrics/record.h"
#include "stepforge/nn/context.h"

namespace stepforge {

/// Sums stay on the compute device, and nothing is exchanged with other ranks, before a record is asked for.
class MtpLosses {
 public:
  MtpLosses(int64_t depths, at::Device device);

  /// The losses of a micro-batch of depth `ahead`, whose labels `batch` has.
  void add(int ahead, const BatchTensors& batch, const at::Tensor& token_loss);
  /// Adds the mean of each depth over its labels on all ranks, without the weight that it has in the gradients, and starts
  /// again; a depth without a label adds nothing. All ranks of the job call it together; `ranks` is null for a single one.
  void log(Communicator* ranks, MetricsRecord& record);

 private:
  at::Tensor sums_;  ///< [depths, 2] fp64: of losses, and of the weights of their labels
};

}  // namespace stepforge
