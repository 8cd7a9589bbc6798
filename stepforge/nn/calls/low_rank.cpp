// SPDX-License-Identifier: Apache-2.0
#include "stepforge/modelspec/calls/low_rank.h"

#include <algorithm>
#include <vector>

#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include "stepforge/kernels/dropout_add.h"
#include "stepforge/kernels/expert_rows.h"
#include "stepforge/kernels/linear_product.h"
#include "stepforge/kernels/tensor_check.h"
#include "stepforge/nn/call_entries.h"
#include "stepforge/nn/dropout_site.h"

namespace stepforge {

namespace {

/// Writes `x`, an operand or its gradient, without the elements that are dropped.
void drop(const CallRun& run, const at::Tensor& x) {
  const auto& attributes = attributes_of<DropoutAttributes>(run.call);
  const double p = run.context.adapter_dropout;
  DropoutSite site(run, p, attributes.site, x.size(0));
  site.coords.channel = attributes.channel;
  // The derivative of a dropout is the same dropout.
  dropout_add_backward(x, p, site.key, site.coords, run.written[0]);
}

void dropout(const CallRun& run) {
  drop(run, run.operands[0]);
}

void dropout_backward(const CallRun& run) {
  drop(run, run.gradients[0]);
}

/// One part of the call for the rows of one expert, or of all: the columns of h, of y or its gradient, and the matrix between them.
struct Part {
  at::Tensor h;
  at::Tensor y;
  at::Tensor weight;
  double scale;
};

/// The rows of each expert; all of them are one group without experts.
class RowGroups {
 public:
  RowGroups(const CallRun& run, int64_t rows)
      : run_(run),
        attributes_(attributes_of<LowRankAttributes>(run.call)),
        offsets_(run.operands.size() > low_rank_row::kExperts
                     ? expert_offsets(run.operands[low_rank_row::kExperts], attributes_.experts)
                     : std::vector<int64_t>{0, rows}) {}

  bool some_empty() const { return std::ranges::adjacent_find(offsets_) != offsets_.end(); }
  /// `matrix` [groups * rows, columns] by group.
  at::Tensor split(const at::Tensor& matrix) const {
    return matrix.view({static_cast<int64_t>(offsets_.size()) - 1, -1, matrix.size(1)});
  }

  /// Calls body(group, part) for part `index` of each group that has rows.
  template <typename Body>
  void each(std::size_t index, const at::Tensor& h, const at::Tensor& y, const Body& body) const {
    const LowRankPart& part = attributes_.parts.at(index);
    const at::Tensor weights = split(run_.weight(index).value().detach());
    for (std::size_t g = 0; g + 1 < offsets_.size(); ++g) {
      const int64_t rows = offsets_[g + 1] - offsets_[g];
      if (rows == 0) continue;
      const auto group = static_cast<int64_t>(g);
      Part found{h.narrow(0, offsets_[g], rows).narrow(1, part.rank_begin, weights.size(2)),
                 y.narrow(0, offsets_[g], rows).narrow(1, part.column_begin, weights.size(1)),
                 weights.select(0, group), part.scale};
      body(group, found);
    }
  }

 private:
  const CallRun& run_;
  const LowRankAttributes& attributes_;
  std::vector<int64_t> offsets_;
};

void low_rank(const CallRun& run) {
  const at::Tensor sum = run.written[0];
  if (!sum.is_same(run.operands[1])) sum.copy_(run.operands[1]);
  const RowGroups groups(run, sum.size(0));
  for (std::size_t i = 0; i < run.weights.size(); ++i)
    groups.each(i, run.operands[0], sum, [](int64_t, Part& part) {
      at::addmm_out(part.y, part.y, part.h, part.weight.t(), 1, part.scale);
    });
}

/// dB = scale dy^T h of one group.
void write_gradient(const Part& part, at::Tensor gradient) {
  if (part.y.scalar_type() == gradient.scalar_type())
    at::mm_out(gradient, part.y.t(), part.h);
  else
    linear_weight_gradient(part.y.contiguous(), part.h.contiguous(), gradient, /*accumulate=*/false);
  gradient.mul_(part.scale);
}

/// That of part `index`, in memory of its own.
at::Tensor weight_gradient(const CallRun& run, const RowGroups& groups, std::size_t index) {
  const at::Tensor& weight = run.weight(index).value();
  const at::Tensor gradient = at::empty(weight.sizes(), weight.options().dtype(compute_type(weight)));
  const at::Tensor of_groups = groups.split(gradient);
  if (groups.some_empty()) gradient.zero_();
  groups.each(index, run.operands[0], run.gradients[0],
              [&](int64_t group, const Part& part) { write_gradient(part, of_groups.select(0, group)); });
  return gradient;
}

void low_rank_backward(const CallRun& run) {
  const RowGroups groups(run, run.gradients[0].size(0));
  for (std::size_t i = 0; i < run.weights.size(); ++i) {
    Parameter& weight = run.weight(i);
    if (!weight.trained()) continue;
    const at::Tensor gradient = weight_gradient(run, groups, i);
    if (run.summed() != nullptr) run.summed()->sum(gradient);
    weight.add_gradient(gradient);
  }
  if (!run.written.wanted(0)) return;
  const at::Tensor h = run.written[0];
  for (std::size_t i = 0; i < run.weights.size(); ++i)
    groups.each(i, h, run.gradients[0], [](int64_t, Part& part) {
      at::addmm_out(part.h, part.h, part.y, part.weight, 0, part.scale);
    });
}

}  // namespace

extern const CallEntry kDropoutEntry = {&kDropout, dropout, dropout_backward};
extern const CallEntry kLowRankEntry = {&kLowRank, low_rank, low_rank_backward};

}  // namespace stepforge
