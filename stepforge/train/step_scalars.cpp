// SPDX-License-Identifier: Apache-2.0
#include "stepforge/train/step_scalars.h"

#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>

#include "stepforge/kernels/reduce.h"
#include "stepforge/storage/tensor_parts.h"

namespace stepforge {

StepScalars::StepScalars(int64_t micro_batches, int64_t ranks, at::Device device, int64_t units,
                         int64_t depths) {
  constexpr int64_t kSingle = 19;
  constexpr int64_t kOfDepth = 3;
  constexpr int64_t kCounts = 6;
  const int64_t losses = micro_batches + 1;
  all = at::zeros({kSingle + kOfDepth * depths + units + losses * (ranks > 1 ? ranks + 1 : 1)},
                  at::TensorOptions().dtype(at::kDouble).device(device));
  int64_t used = 0;
  const auto next = [&](int64_t count) { return all.narrow(0, std::exchange(used, used + count), count); };
  const auto single = [&] { return next(1).select(0, 0); };
  own_weight = single();
  data_ranks = single();
  counts = next(kCounts + depths);
  label_weight = counts.select(0, 0);
  valid_labels = counts.select(0, 1);
  interrupted = counts.select(0, 2);
  tokens = counts.select(0, 3);
  without_rows = counts.select(0, 4);
  better_labels = counts.select(0, 5);
  sft_scale = single();
  label_mean = single();
  token_weight = single();
  for (int64_t depth = 0; depth < depths; ++depth)
    ahead.push_back({single(), counts.select(0, kCounts + depth), single()});
  own_losses = next(losses);
  loss_sums = own_losses.narrow(0, 0, micro_batches);
  own_mean = own_losses.select(0, micro_batches);
  gathered_losses = (ranks > 1 ? next(losses * ranks) : own_losses).view({ranks, losses});
  loss = single();
  max_loss = single();
  unit_norm_terms = next(units);
  norm_terms = single();
  norm = single();
  update = {.finite = single(), .number = single(), .lr_factor = single(), .grad_scale = single()};
}

void StepScalars::begin(double own_label_weight, int64_t own_labels, int64_t own_tokens,
                        int64_t data_rank_count, std::span<const double> ahead_weights,
                        int64_t own_better_labels) const {
  all.zero_();
  own_weight.fill_(own_label_weight);
  data_ranks.fill_(data_rank_count);
  label_weight.fill_(own_label_weight);
  valid_labels.fill_(own_labels);
  tokens.fill_(own_tokens);
  better_labels.fill_(own_better_labels);
  for (size_t i = 0; i < ahead.size(); ++i) {
    ahead[i].own_weight.fill_(ahead_weights[i]);
    ahead[i].label_weight.fill_(ahead_weights[i]);
  }
}

void StepScalars::sum_counts(Communicator& ranks, const RankLayout& layout) const {
  if (layout.index_in(layout.tensor_group) != 0 || layout.index_in(layout.pipeline_group) != 0) {
    label_weight.zero_();
    valid_labels.zero_();
    tokens.zero_();
    better_labels.zero_();
    for (const AheadScalars& depth : ahead) depth.label_weight.zero_();
  }
  ranks.all_reduce(bytes_of(counts), DType::f64);
}

void StepScalars::share_losses(Communicator& stages) const {
  stages.all_reduce(bytes_of(loss_sums), DType::f64);  // those of the other stages are 0
}

void StepScalars::gather_losses(Communicator& ranks) const {
  ranks.all_gather(bytes_of(own_losses), bytes_of(gathered_losses));
}

StepScalars step_scalars(const StepProgram& program, const ModelStore& store) {
  const RankLayout& layout = store.groups().layout();
  return {program.micro_batches, layout.size_of(layout.loss_group), store.device(),
          layout.pipeline_group >= 0 ? layout.model_units : 0, program.ahead};
}

void sum_losses(const BatchTensors& batch, const at::Tensor& token_loss, const at::Tensor& sum) {
  sum_in_order(batch.weights.defined() ? token_loss.to(at::kDouble) * batch.weights : token_loss, sum);
}

}  // namespace stepforge
