// SPDX-License-Identifier: Apache-2.0
#include "stepforge/prove/exact_entries.h"

#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "stepforge/base/error.h"
#include "stepforge/kernels/bias.h"
#include "stepforge/kernels/expert_rows.h"
#include "stepforge/modelspec/calls/attention.h"
#include "stepforge/modelspec/calls/loss.h"
#include "stepforge/modelspec/calls/magnitude.h"
#include "stepforge/modelspec/calls/norm.h"
#include "stepforge/modelspec/calls/residual.h"
#include "stepforge/modelspec/calls/rotary.h"
#include "stepforge/modelspec/calls/router.h"
#include "stepforge/modelspec/calls/swiglu.h"
#include "stepforge/nn/norm_gradient.h"
#include "stepforge/nn/wide_linear.h"
#include "stepforge/prove/exact_loss.h"
#include "stepforge/prove/exact_rounding.h"
#include "stepforge/prove/token_sum.h"

namespace stepforge {

namespace {

void add_to_weight(const CallRun& run, std::size_t index, const at::Tensor& sum) {
  NormGradient gradient(run.weight(index), run.summed());
  gradient.target().copy_(sum.view(gradient.target().sizes()));
  gradient.finish();
}

at::Tensor scale_of(const CallRun& run) {
  return run.weight(0).value().detach() + attributes_of<NormAttributes>(run.call).offset;
}

void rms_norm(const CallRun& run) {
  run.written[0].copy_(to_integers(run.operands[0] * scale_of(run)));
  run.written[1].zero_();
}

void rms_norm_backward(const CallRun& run) {
  const at::Tensor& gradient = run.gradients[0];
  add_to_weight(run, 0, (gradient * run.operands[0]).sum(0));
  at::Tensor sum = gradient * scale_of(run);
  if (run.summand.defined()) sum = sum + run.summand;
  if (run.written.wanted(0)) run.written[0].copy_(to_gradients(sum));
}

/// What rotary() multiplies queries and keys by: [1, columns], the norms, and [N, 1], by position.
struct Turn {
  int64_t columns;
  at::Tensor scale;
  at::Tensor sign;

  explicit Turn(const CallRun& run) {
    const AttentionShape& shape = attributes_of<RotaryAttributes>(run.call).shape;
    columns = shape.q_width() + shape.k_width();
    const at::TensorOptions options = at::TensorOptions().dtype(at::kFloat);
    scale = at::ones({1, columns}, options);
    if (!run.weights.empty()) {
      const auto of = [&](std::size_t index, int64_t width) {
        const at::Tensor weight =
            run.weight(index).value().detach() + attributes_of<RotaryAttributes>(run.call).offset;
        return weight.repeat({width / weight.numel()});
      };
      scale = at::cat({of(0, shape.q_width()), of(1, shape.k_width())}).view({1, columns});
    }
    sign = (run.context.batch->positions.remainder(2) * -2 + 1).to(at::kFloat).unsqueeze(1);
  }
};

void rotary(const CallRun& run) {
  const Turn turn(run);
  const at::Tensor qkv = run.operands[0].clone();  // perhaps the memory of the result
  qkv.narrow(1, 0, turn.columns).mul_(turn.scale).mul_(turn.sign);
  run.written[0].copy_(to_integers(qkv));
  if (!run.weights.empty()) run.written[1].zero_();
}

void rotary_backward(const CallRun& run) {
  const Turn turn(run);
  const at::Tensor gradient = run.gradients[0].clone();
  const at::Tensor turned = gradient.narrow(1, 0, turn.columns).mul_(turn.sign);
  if (!run.weights.empty()) {
    const AttentionShape& shape = attributes_of<RotaryAttributes>(run.call).shape;
    const at::Tensor sums = (turned * run.operands[0].narrow(1, 0, turn.columns)).sum(0);
    const auto of_heads = [&](std::size_t index, int64_t begin, int64_t width) {
      add_to_weight(run, index,
                    sums.narrow(0, begin, width).view({-1, run.weight(index).value().numel()}).sum(0));
    };
    of_heads(0, 0, shape.q_width());
    of_heads(1, shape.q_width(), shape.k_width());
  }
  turned.mul_(turn.scale);
  run.written[0].copy_(to_gradients(gradient));
}

/// [N, heads of keys, queries of each, elements] of what has all query heads.
at::Tensor by_group(const at::Tensor& x, const AttentionShape& shape) {
  return x.view({x.size(0), shape.kv_heads, shape.heads / shape.kv_heads, shape.head_dim});
}

const AttentionShape& shape_of(const CallRun& run) {
  const AttentionShape& shape = attributes_of<AttentionAttributes>(run.call).shape;
  if (!run.weights.empty() || shape.value_size() != shape.head_dim)
    throw Error("exact attention has no sinks, and values as large as keys");
  return shape;
}

void attention(const CallRun& run) {
  const AttentionShape& shape = shape_of(run);
  const auto parts = split_qkv(run.operands[0], shape);
  const at::Tensor seen = sum_seen_tokens(parts.k + parts.v, *run.context.batch, run.resources.exchange);
  const at::Tensor out =
      by_group(parts.q.contiguous(), shape) + seen.view({seen.size(0), shape.kv_heads, 1, shape.head_dim});
  run.written[0].copy_(to_integers(out).view({seen.size(0), shape.out_width()}));
  run.written[1].zero_();
}

void attention_backward(const CallRun& run) {
  const AttentionShape& shape = shape_of(run);
  const at::Tensor& gradient = run.gradients[0];
  const at::Tensor of_keys = by_group(gradient, shape).sum(2).view({gradient.size(0), shape.k_width()});
  const at::Tensor keys = sum_seeing_tokens(of_keys, *run.context.batch, run.resources.exchange);
  run.written[0].copy_(at::cat({gradient, keys, keys}, 1));
}

/// Gate and up, rounded, and the weight of each row; undefined without weights.
struct GateUp {
  at::Tensor gate;
  at::Tensor up;
  at::Tensor weight;
  at::Tensor slots;
  bool alternate;  ///< columns of gate and up alternate

  explicit GateUp(const CallRun& run)
      : alternate(attributes_of<SwigluAttributes>(run.call).clamped.has_value()) {
    const at::Tensor& both = run.operands[0];
    const auto parts =
        alternate ? both.view({both.size(0), both.size(1) / 2, 2}).unbind(2) : both.chunk(2, 1);
    gate = to_integers(parts[0]);
    up = to_integers(parts[1]);
    if (run.operands.size() == 1) return;
    slots = run.operands[2].view({-1}).to(at::kLong);
    weight = run.operands[1].flatten().index_select(0, slots).unsqueeze(1);
  }
  at::Tensor hidden() const { return to_integers(gate * up); }
};

void swiglu(const CallRun& run) {
  const GateUp in(run);
  run.written[0].copy_(in.weight.defined() ? in.hidden() * in.weight : in.hidden());
}

void swiglu_backward(const CallRun& run) {
  const GateUp in(run);
  at::Tensor gradient = run.gradients[0];
  if (in.weight.defined()) {
    // A share, if this rank has some of the hidden units of an expert.
    run.written[1].view({-1}).index_copy_(0, in.slots, (gradient * in.hidden()).sum(1));
    gradient = gradient * in.weight;
  }
  const at::Tensor gate = to_gradients(gradient * in.up);
  const at::Tensor up = to_gradients(gradient * in.gate);
  run.written[0].copy_(in.alternate ? at::stack({gate, up}, 2).view(run.operands[0].sizes())
                                    : at::cat({gate, up}, 1));
}

void residual_add(const CallRun& run) {
  entry_of(kResidualAdd).forward(run);
  run.written[0].copy_(to_integers(run.written[0]));
}

void gated_add(const CallRun& run) {
  run.written[0].copy_(run.operands[0] + to_integers(run.operands[2]) * run.operands[1]);
}

void gated_add_backward(const CallRun& run) {
  const at::Tensor& gradient = run.gradients[0];
  run.written[1].copy_(gradient * to_integers(run.operands[2]));
  run.written[2].copy_(to_gradients((gradient * run.operands[1]).sum(1, /*keepdim=*/true)));
}

/// What columns with magnitudes are multiplied and divided by.
struct Magnitudes {
  /// [experts, width]: in place of the norm of a row of W + scale B A 1 or 2, by the parity of its square; 1 of other columns
  at::Tensor norms;
  at::Tensor factors;  ///< [experts, width]: magnitudes by these
  at::Tensor experts;  ///< [rows]: that each row belongs to, 0 without experts

  Magnitudes(const CallRun& run, int64_t rows) {
    const auto& attributes = attributes_of<MagnitudeAttributes>(run.call);
    const std::size_t count = attributes.parts.size();
    const at::Tensor w = of_each(run.weight(count).value(), attributes.experts);
    const at::Tensor a = run.weight(count + 1).value().detach();
    const bool one_a = a.size(0) == magnitude_row::ranks(run.call);
    norms = at::ones({w.size(0), w.size(1)}, w.options());
    factors = at::ones_like(norms);
    for (std::size_t i = 0; i < count; ++i) {
      const LowRankPart& part = attributes.parts[i];
      const at::Tensor b = of_each(run.weight(count + 2 + i).value(), attributes.experts);
      const at::Tensor of_part =
          of_each(a, one_a ? 1 : attributes.experts).narrow(1, part.rank_begin, b.size(2));
      const at::Tensor changed =
          w.narrow(1, part.column_begin, b.size(1)) + at::matmul(b, of_part) * part.scale;
      const at::Tensor squares = changed.square().sum(2);
      if (attributes.divided && run.resources.tensor.several()) run.resources.tensor.sum(squares);
      const at::Tensor norms_of_part = columns(norms, i, run);
      norms_of_part.add_(squares.floor().remainder(2));
      columns(factors, i, run).copy_(run.weight(i).value().detach().view(squares.sizes()) / norms_of_part);
    }
    experts = at::zeros({rows}, w.options().dtype(at::kLong));
    if (run.operands.size() <= magnitude_row::kExperts) return;
    const std::vector<int64_t> offsets =
        expert_offsets(run.operands[magnitude_row::kExperts], attributes.experts);
    for (int64_t e = 0; e < attributes.experts; ++e) {
      const auto at = static_cast<std::size_t>(e);
      experts.narrow(0, offsets[at], offsets[at + 1] - offsets[at]).fill_(e);
    }
  }

  /// Of what has [experts, width], the columns of one part.
  static at::Tensor columns(const at::Tensor& values, std::size_t index, const CallRun& run) {
    const LowRankPart& part = attributes_of<MagnitudeAttributes>(run.call).parts[index];
    return values.narrow(1, part.column_begin, run.weight(index).value().size(0) / values.size(0));
  }

 private:
  /// [experts, rows, columns] of matrices one below the other.
  static at::Tensor of_each(const at::Tensor& matrices, int64_t experts) {
    return matrices.detach().view({experts, -1, matrices.size(1)});
  }
};

void magnitude(const CallRun& run) {
  const at::Tensor y = to_integers(run.operands[0]);
  const Magnitudes by(run, y.size(0));
  run.written[0].copy_(to_integers(y * by.factors.index_select(0, by.experts)));
}

void magnitude_backward(const CallRun& run) {
  const at::Tensor& gradient = run.gradients[0];
  const Magnitudes by(run, gradient.size(0));
  if (run.operands[0].defined()) {
    const at::Tensor sums = at::zeros_like(by.norms);
    sums.index_add_(0, by.experts, gradient * to_integers(run.operands[0]));
    sums.div_(by.norms);
    for (std::size_t i = 0; i < attributes_of<MagnitudeAttributes>(run.call).parts.size(); ++i)
      add_to_weight(run, i, Magnitudes::columns(sums, i, run).flatten());
  }
  if (run.written.wanted(0))
    run.written[0].copy_(to_gradients(gradient * by.factors.index_select(0, by.experts)));
}

/// The experts with the largest logits [N, E], which are integers; of equal ones the first.
at::Tensor choice(const at::Tensor& logits, int64_t chosen) {
  const at::TensorOptions whole = at::device(logits.device()).dtype(at::kLong);
  // Distinct numbers, so that the order does not depend on an algorithm.
  at::Tensor keys = logits.to(at::kLong) * logits.size(1) - at::arange(logits.size(1), whole);
  const at::Tensor indices = at::empty({logits.size(0), chosen}, whole);
  for (int64_t j = 0; j < chosen; ++j) {
    const at::Tensor largest = keys.argmax(1, true);
    indices.narrow(1, j, 1).copy_(largest);
    keys.scatter_(1, largest, -1000 * logits.size(1));
  }
  return indices;
}

void route(const CallRun& run) {
  const auto& route = attributes_of<RouteAttributes>(run.call);
  const at::Tensor logits = run.written[2];
  wide_product(run.operands[0], run.weight(0).value(), logits);
  if (route.biased) bias_forward(logits, widen(run.weight(1).value()));
  logits.copy_(to_integers(logits));
  const at::Tensor indices = choice(logits, route.settings.options.chosen);
  run.written[0].copy_(logits.gather(1, indices));
  run.written[1].copy_(indices);
}

void route_backward(const CallRun& run) {
  const at::Tensor& logits = run.results[2];
  const at::Tensor gradient = at::zeros(logits.sizes(), logits.options());
  gradient.scatter_(1, run.results[1].to(at::kLong), to_gradients(run.gradients[0]));
  if (attributes_of<RouteAttributes>(run.call).biased) add_to_weight(run, 1, gradient.sum(0));
  if (run.weight(0).trained()) add_wide_product(run.weight(0), gradient, run.operands[0]);
  if (run.written.wanted(0)) wide_input_gradient(gradient, run.weight(0).value(), run.written[0]);
}

}  // namespace

const CallEntry& exact_entry_of(const CallKind& kind) {
  static const std::vector<CallEntry> kExact = {
      {&kRmsNorm, rms_norm, rms_norm_backward},
      {&kRotary, rotary, rotary_backward},
      {&kAttention, attention, attention_backward},
      {&kSwiglu, swiglu, swiglu_backward},
      {&kResidualAdd, residual_add, entry_of(kResidualAdd).backward},
      {&kGatedAdd, gated_add, gated_add_backward},
      {&kMagnitude, magnitude, magnitude_backward},
      {&kRoute, route, route_backward},
  };
  if (&kind == &kLoss) return exact_loss_entry();
  for (const CallEntry& entry : kExact)
    if (entry.kind == &kind) return entry;
  return entry_of(kind);
}

}  // namespace stepforge
