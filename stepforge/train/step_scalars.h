// SPDX-License-Identifier: Apache-2.0
// The numbers of a step that depend on its data, in one buffer on the compute device.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stepforge/comm/communicator.h"
#include "stepforge/kernels/adamw.h"
#include "stepforge/layout/rank_layout.h"
#include "stepforge/nn/context.h"
#include "stepforge/step/program.h"
#include "stepforge/storage/unit_store.h"

namespace stepforge {

/// The scalars of the labels of one depth of multi-token prediction.
struct AheadScalars {
  at::Tensor own_weight;
  at::Tensor label_weight;
  at::Tensor token_weight;
};

/// Operations of a training or evaluation step read and write them there (kernels/scalars.h), and ranks
/// exchange their memory. All tensors are fp64 views of `all`, and without dimensions where no shape is stated.
struct StepScalars {
  /// For programs of `micro_batches` per rank whose losses are gathered from `ranks` ranks. `units`: of the whole model
  /// in a pipeline, otherwise 0. `depths`: of multi-token prediction.
  StepScalars(int64_t micro_batches, int64_t ranks, at::Device device, int64_t units = 0, int64_t depths = 0);

  /// Starts a step: sets the total weight of this rank's labels, their number, the number of its tokens without padding,
  /// and the number of ranks with data; all others to 0. `ahead_weights`: the total weight of the labels of each depth.
  /// `own_better_labels`: of this rank's labels, those of the better answers of pairs.
  void begin(double own_label_weight, int64_t own_labels, int64_t own_tokens, int64_t data_rank_count,
             std::span<const double> ahead_weights = {}, int64_t own_better_labels = 0) const;

  /// Sums `counts` over all ranks. Among ranks that read the same rows, by tensor parallelism or in a pipeline, one counts
  /// labels and tokens.
  void sum_counts(Communicator& ranks, const RankLayout& layout) const;
  /// Sets loss_sums on all stages to those of the last one.
  void share_losses(Communicator& stages) const;
  /// Fills gathered_losses.
  void gather_losses(Communicator& ranks) const;

  at::Tensor all;

  at::Tensor
      own_weight;  ///< of the labels of this rank's micro-batches together; their number if each weighs 1
  at::Tensor data_ranks;  ///< ranks that read different rows
  at::Tensor counts;      ///< [6 + depths]: the next six, and the label_weight of each depth, which ranks add
  at::Tensor label_weight;   ///< own_weight of all ranks
  at::Tensor valid_labels;   ///< of the step
  at::Tensor interrupted;    ///< ranks that were asked to stop
  at::Tensor tokens;         ///< of the step, without padding
  at::Tensor without_rows;   ///< ranks that could not read their rows
  at::Tensor better_labels;  ///< of the step; 0 unless it trains on pairs of answers
  at::Tensor sft_scale;      ///< of these: label_weight / better_labels
  at::Tensor label_mean;     ///< 1 / valid_labels: the scale of the routers' losses of such a step
  at::Tensor token_weight;   ///< of a label of this rank that weighs 1 in the loss: the scale of its gradient
  std::vector<AheadScalars> ahead;  ///< of depth 1, 2, ...

  at::Tensor own_losses;  ///< [micro_batches + 1]: the next two, which each rank sends
  at::Tensor loss_sums;   ///< [micro_batches]: of this rank
  at::Tensor own_mean;    ///< the weighted mean of this rank's losses
  /// [ranks, micro_batches + 1]: own_losses of each rank; with one rank the same memory.
  at::Tensor gathered_losses;
  at::Tensor loss;             ///< of the step
  at::Tensor max_loss;         ///< the largest own_mean
  at::Tensor unit_norm_terms;  ///< [units]: of the gradient of each unit
  at::Tensor norm_terms;       ///< of the gradients of all units (storage/gradient_norm.h)
  at::Tensor norm;             ///< of the gradients, before clipping
  UpdateScalars update;
};

/// For a program on the units and groups of `store`.
StepScalars step_scalars(const StepProgram& program, const ModelStore& store);

/// sum = the losses of the tokens of `batch`, each times the weight of its label, added in order.
void sum_losses(const BatchTensors& batch, const at::Tensor& token_loss, const at::Tensor& sum);

/// The numbers of a step on the host. Making it waits for the device.
class HostScalars {
 public:
  explicit HostScalars(const StepScalars& scalars) : all_(scalars.all.cpu()) {}
  /// The number of a scalar of the step.
  double operator()(const at::Tensor& scalar) const {
    return all_.const_data_ptr<double>()[scalar.storage_offset()];
  }

 private:
  at::Tensor all_;
};

}  // namespace stepforge
