// SPDX-License-Identifier: Apache-2.0
#include "stepforge/modelspec/calls/magnitude.h"

#include <algorithm>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include "stepforge/kernels/expert_rows.h"
#include "stepforge/kernels/tensor_check.h"
#include "stepforge/nn/call_entries.h"
#include "stepforge/nn/weight_norms.h"

namespace stepforge {

namespace {

/// The rows of `norms` that one part has are written: the squared norms of the rows of W + scale B A.
void square_norms(const at::Tensor& w, const at::Tensor& b, const at::Tensor& a, double scale,
                  const at::Tensor& norms, const at::Tensor& scratch) {
  const int64_t columns = w.size(1);
  const int64_t most = scratch.numel() / columns;
  for (int64_t begin = 0; begin < w.size(0); begin += most) {
    const int64_t count = std::min(most, w.size(0) - begin);
    at::Tensor sum = scratch.narrow(0, 0, count * columns).view({count, columns});
    sum.copy_(w.narrow(0, begin, count));
    at::addmm_out(sum, sum, b.narrow(0, begin, count), a, 1, scale);
    at::Tensor part = norms.narrow(0, begin, count);
    at::linalg_vector_norm_out(part, sum, 2, at::IntArrayRef{1});
    part.square_();
  }
}

/// What forward and backward need of the weights, and the rows of each expert: all of them without experts.
struct Scaling {
  at::Tensor scratch;
  at::Tensor norms;    ///< [experts, width]
  at::Tensor factors;  ///< [experts, width]: magnitudes / norms, elsewhere 1
  std::vector<int64_t> offsets;
};

/// Of what has [experts, width], the columns of one part.
at::Tensor columns_of(const at::Tensor& values, const LowRankPart& part, const at::Tensor& magnitude) {
  return values.narrow(1, part.column_begin, magnitude.size(0) / values.size(0));
}

/// Of a call on so many rows.
Scaling scaling_of(const CallRun& run, int64_t rows) {
  const auto& attributes = attributes_of<MagnitudeAttributes>(run.call);
  Scaling made;
  made.offsets = run.operands.size() > magnitude_row::kExperts
                     ? expert_offsets(run.operands[magnitude_row::kExperts], attributes.experts)
                     : std::vector<int64_t>{0, rows};
  made.scratch = weight_norm_scratch(run.call, run.weights);
  made.norms =
      weight_norms(run.call, run.weights, run.resources.tensor, made.scratch).view({attributes.experts, -1});
  made.factors = at::ones(made.norms.sizes(), made.norms.options());
  for (std::size_t i = 0; i < attributes.parts.size(); ++i) {
    const at::Tensor magnitude = run.weight(i).value().detach();
    at::Tensor factors = columns_of(made.factors, attributes.parts[i], magnitude);
    at::div_out(factors, magnitude.view(factors.sizes()),
                columns_of(made.norms, attributes.parts[i], magnitude));
  }
  return made;
}

/// Calls visit(expert, begin, count) for as many rows of one expert at once as `arrays` of them fit into the scratch.
template <typename Visit>
void for_rows(const Scaling& scaling, int64_t arrays, const Visit& visit) {
  const int64_t most = scaling.scratch.numel() / (arrays * scaling.norms.size(1));
  for (std::size_t e = 0; e + 1 < scaling.offsets.size(); ++e)
    for (int64_t begin = scaling.offsets[e]; begin < scaling.offsets[e + 1]; begin += most)
      visit(static_cast<int64_t>(e), begin, std::min(most, scaling.offsets[e + 1] - begin));
}

at::Tensor array_in(const at::Tensor& scratch, int64_t index, int64_t count, int64_t width) {
  return scratch.narrow(0, index * count * width, count * width).view({count, width});
}

void magnitude(const CallRun& run) {
  const at::Tensor& y = run.operands[0];
  const Scaling scaling = scaling_of(run, y.size(0));
  const at::Tensor scaled = run.written[0];
  for_rows(scaling, 1, [&](int64_t expert, int64_t begin, int64_t count) {
    const at::Tensor rows = array_in(scaling.scratch, 0, count, y.size(1));
    rows.copy_(y.narrow(0, begin, count));
    rows.mul_(scaling.factors.select(0, expert));
    scaled.narrow(0, begin, count).copy_(rows);
  });
}

/// Of the sums over the rows of each expert of gradient times y, the gradient of each magnitude.
void add_gradients(const CallRun& run, const at::Tensor& sums, const at::Tensor& norms) {
  const auto& parts = attributes_of<MagnitudeAttributes>(run.call).parts;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    Parameter& weight = run.weight(i);
    if (!weight.trained()) continue;
    const at::Tensor& magnitude = weight.value();
    const at::Tensor gradient = at::empty(magnitude.sizes(), sums.options());
    at::Tensor of_experts = gradient.view({sums.size(0), -1});
    at::div_out(of_experts, columns_of(sums, parts[i], magnitude), columns_of(norms, parts[i], magnitude));
    if (run.summed() != nullptr) run.summed()->sum(gradient);
    weight.add_gradient(gradient);
  }
}

void magnitude_backward(const CallRun& run) {
  const at::Tensor& gradient = run.gradients[0];
  const int64_t width = gradient.size(1);
  const Scaling scaling = scaling_of(run, gradient.size(0));
  const at::Tensor sums = at::zeros(scaling.factors.sizes(), scaling.factors.options());
  at::Tensor of_these = at::empty({width}, scaling.factors.options());
  const at::Tensor y = run.operands[0];
  const bool trained = y.defined();
  const at::Tensor written = run.written.wanted(0) ? run.written[0] : at::Tensor();
  for_rows(scaling, 2, [&](int64_t expert, int64_t begin, int64_t count) {
    const at::Tensor of_result = array_in(scaling.scratch, 0, count, width);
    of_result.copy_(gradient.narrow(0, begin, count));
    if (trained) {
      const at::Tensor product = array_in(scaling.scratch, 1, count, width);
      product.copy_(y.narrow(0, begin, count));
      product.mul_(of_result);
      at::sum_out(of_these, product, at::IntArrayRef{0});
      sums.select(0, expert).add_(of_these);
    }
    if (!written.defined()) return;
    of_result.mul_(scaling.factors.select(0, expert));
    written.narrow(0, begin, count).copy_(of_result);
  });
  if (trained) add_gradients(run, sums, scaling.norms);
}

}  // namespace

at::Tensor weight_norm_scratch(const Call& call, std::span<Parameter* const> weights) {
  const at::Tensor& w = weights[magnitude_row::parts(call)]->value();
  const int64_t width = w.size(0) / attributes_of<MagnitudeAttributes>(call).experts;
  return at::empty({magnitude_row::scratch(width, w.size(1))}, w.options().dtype(compute_type(w)));
}

at::Tensor weight_norms(const Call& call, std::span<Parameter* const> weights, const TensorExchange& tensor,
                        const at::Tensor& scratch) {
  const at::NoGradGuard no_grad;
  const auto& attributes = attributes_of<MagnitudeAttributes>(call);
  const std::size_t count = attributes.parts.size();
  const at::Tensor& w = weights[count]->value();
  const at::Tensor& a = weights[count + 1]->value();
  const int64_t width = w.size(0) / attributes.experts;
  const int64_t ranks = magnitude_row::ranks(call);
  const bool one_a = a.size(0) == ranks;
  at::Tensor norms = at::ones({w.size(0)}, scratch.options());
  for (int64_t e = 0; e < attributes.experts; ++e)
    for (std::size_t i = 0; i < count; ++i) {
      const LowRankPart& part = attributes.parts[i];
      const at::Tensor& all = weights[count + 2 + i]->value();
      const int64_t rows = all.size(0) / attributes.experts;
      const int64_t row = e * width + part.column_begin;
      const at::Tensor b = all.narrow(0, e * rows, rows).to(scratch.scalar_type());
      const at::Tensor of_part =
          a.narrow(0, (one_a ? 0 : e * ranks) + part.rank_begin, b.size(1)).to(scratch.scalar_type());
      at::Tensor squares = norms.narrow(0, row, rows);
      square_norms(w.narrow(0, row, rows), b, of_part, part.scale, squares, scratch);
      if (attributes.divided && tensor.several()) tensor.sum(squares);
      squares.sqrt_().clamp_min_(kSmallestNorm);
    }
  return norms;
}

extern const CallEntry kMagnitudeEntry = {&kMagnitude, magnitude, magnitude_backward};

}  // namespace stepforge
