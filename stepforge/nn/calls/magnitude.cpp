// SPDX-License-Identifier: Apache-2.0
#include "stepforge/modelspec/calls/magnitude.h"

#include <algorithm>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

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

/// What forward and backward need of the weights.
struct Scaling {
  at::Tensor scratch;
  at::Tensor norms;    ///< [width]
  at::Tensor factors;  ///< [width]: magnitudes / norms, elsewhere 1
};

Scaling scaling_of(const CallRun& run) {
  Scaling made;
  made.scratch = weight_norm_scratch(run.call, run.weights);
  made.norms = weight_norms(run.call, run.weights, run.resources.tensor, made.scratch);
  made.factors = at::ones(made.norms.sizes(), made.norms.options());
  const auto& parts = attributes_of<MagnitudeAttributes>(run.call).parts;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const at::Tensor magnitude = run.weight(i).value().detach();
    at::Tensor factors = made.factors.narrow(0, parts[i].column_begin, magnitude.size(0));
    at::div_out(factors, magnitude, made.norms.narrow(0, parts[i].column_begin, magnitude.size(0)));
  }
  return made;
}

/// Calls visit(begin, count) for as many tokens at once as `arrays` of them fit into the scratch.
template <typename Visit>
void for_tokens(const at::Tensor& rows, const at::Tensor& scratch, int64_t arrays, const Visit& visit) {
  const int64_t most = scratch.numel() / (arrays * rows.size(1));
  for (int64_t begin = 0; begin < rows.size(0); begin += most)
    visit(begin, std::min(most, rows.size(0) - begin));
}

at::Tensor array_in(const at::Tensor& scratch, int64_t index, int64_t count, int64_t width) {
  return scratch.narrow(0, index * count * width, count * width).view({count, width});
}

void magnitude(const CallRun& run) {
  const at::Tensor& y = run.operands[0];
  const Scaling scaling = scaling_of(run);
  const at::Tensor scaled = run.written[0];
  for_tokens(y, scaling.scratch, 1, [&](int64_t begin, int64_t count) {
    const at::Tensor rows = array_in(scaling.scratch, 0, count, y.size(1));
    rows.copy_(y.narrow(0, begin, count));
    rows.mul_(scaling.factors);
    scaled.narrow(0, begin, count).copy_(rows);
  });
}

/// Of the sums over tokens of gradient times y, the gradient of each magnitude.
void add_gradients(const CallRun& run, const at::Tensor& sums, const at::Tensor& norms) {
  const auto& parts = attributes_of<MagnitudeAttributes>(run.call).parts;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    Parameter& weight = run.weight(i);
    if (!weight.trained()) continue;
    const int64_t rows = weight.value().size(0);
    at::Tensor gradient = at::empty({rows}, sums.options());
    at::div_out(gradient, sums.narrow(0, parts[i].column_begin, rows),
                norms.narrow(0, parts[i].column_begin, rows));
    if (run.summed() != nullptr) run.summed()->sum(gradient);
    weight.add_gradient(gradient);
  }
}

void magnitude_backward(const CallRun& run) {
  const at::Tensor& gradient = run.gradients[0];
  const int64_t width = gradient.size(1);
  const Scaling scaling = scaling_of(run);
  const at::Tensor sums = at::zeros({width}, scaling.factors.options());
  at::Tensor of_these = at::empty({width}, scaling.factors.options());
  const at::Tensor y = run.operands[0];
  const bool trained = y.defined();
  const at::Tensor written = run.written.wanted(0) ? run.written[0] : at::Tensor();
  for_tokens(gradient, scaling.scratch, 2, [&](int64_t begin, int64_t count) {
    const at::Tensor of_result = array_in(scaling.scratch, 0, count, width);
    of_result.copy_(gradient.narrow(0, begin, count));
    if (trained) {
      const at::Tensor product = array_in(scaling.scratch, 1, count, width);
      product.copy_(y.narrow(0, begin, count));
      product.mul_(of_result);
      at::sum_out(of_these, product, at::IntArrayRef{0});
      sums.add_(of_these);
    }
    if (!written.defined()) return;
    of_result.mul_(scaling.factors);
    written.narrow(0, begin, count).copy_(of_result);
  });
  if (trained) add_gradients(run, sums, scaling.norms);
}

}  // namespace

at::Tensor weight_norm_scratch(const Call& call, std::span<Parameter* const> weights) {
  const at::Tensor& w = weights[magnitude_row::parts(call)]->value();
  return at::empty({magnitude_row::scratch(w.size(0), w.size(1))}, w.options().dtype(compute_type(w)));
}

at::Tensor weight_norms(const Call& call, std::span<Parameter* const> weights, const TensorExchange& tensor,
                        const at::Tensor& scratch) {
  const at::NoGradGuard no_grad;
  const auto& attributes = attributes_of<MagnitudeAttributes>(call);
  const std::size_t count = attributes.parts.size();
  const at::Tensor& w = weights[count]->value();
  const at::Tensor& a = weights[count + 1]->value();
  at::Tensor norms = at::ones({w.size(0)}, scratch.options());
  for (std::size_t i = 0; i < count; ++i) {
    const LowRankPart& part = attributes.parts[i];
    const at::Tensor b = weights[count + 2 + i]->value().to(scratch.scalar_type());
    const at::Tensor of_part = a.narrow(0, part.rank_begin, b.size(1)).to(scratch.scalar_type());
    at::Tensor squares = norms.narrow(0, part.column_begin, b.size(0));
    square_norms(w.narrow(0, part.column_begin, b.size(0)), b, of_part, part.scale, squares, scratch);
    if (attributes.divided && tensor.several()) tensor.sum(squares);
    squares.sqrt_().clamp_min_(kSmallestNorm);
  }
  return norms;
}

extern const CallEntry kMagnitudeEntry = {&kMagnitude, magnitude, magnitude_backward};

}  // namespace stepforge
