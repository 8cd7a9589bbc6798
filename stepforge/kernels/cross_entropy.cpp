// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/cross_entropy.h"

#include <algorithm>

#include <ATen/TensorOperators.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/kernels/kernel_table.h"
#include "stepforge/kernels/linear_product.h"
#include "stepforge/kernels/soft_loss.h"
#include "stepforge/kernels/tensor_check.h"

namespace stepforge {
namespace {

void check_operands(const at::Tensor& logits, const at::Tensor& labels, const at::Tensor& token_loss) {
  check_shape(logits, "cross_entropy logits", {logits.size(0), logits.size(1)});
  check_shape(labels, "cross_entropy labels", {logits.size(0)});
  if (labels.scalar_type() != at::kInt && labels.scalar_type() != at::kLong) {
    throw Error(
        format("cross_entropy labels: expected int32 or int64, got {}", c10::toString(labels.scalar_type())));
  }
  check_tensor(token_loss, "cross_entropy token_loss", {logits.size(0)}, compute_type(logits));
}

bool has_valid_label(const at::Tensor& labels) {
  return labels.ne(kIgnoredLabel).any().item<bool>();
}

/// The losses of gradient.loss; `logits` become their gradient.
void other_loss(const at::Tensor& logits, const at::Tensor& labels, const LossGradient& gradient,
                const at::Tensor& token_loss) {
  const at::Tensor ignored = labels.eq(kIgnoredLabel);
  const at::Tensor valid_labels = labels.to(at::kLong).masked_fill(ignored, 0);
  const at::Tensor result = at::empty(logits.sizes(), logits.options().dtype(at::kFloat));
  gradient.loss({logits, valid_labels, token_loss, result});
  token_loss.masked_fill_(ignored, 0);
  const at::Tensor scale = gradient.weights.defined() ? gradient.scale * gradient.weights : gradient.scale;
  result.mul_(scale.view({-1, 1}));
  if (gradient.cap > 0) {
    const at::Tensor slope = logits.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
    result.mul_(slope.div_(gradient.cap).square_().neg_().add_(1));
  }
  logits.copy_(result.masked_fill_(ignored.unsqueeze(1), 0));
}

void check_gradient(const LossGradient& gradient, const at::Tensor& labels, std::string_view function) {
  check_scalar(gradient.scale, format("{} scale", function));
  if (gradient.weights.defined())
    check_tensor(gradient.weights, format("{} weights", function), labels.sizes(), at::kFloat);
}

/// The loss of logits of a part of the vocabulary; with a defined scale they become their gradient.
void cross_entropy_of_part(const at::Tensor& logits, const at::Tensor& labels, const LossGradient& gradient,
                           const at::Tensor& token_loss, const VocabularyPart& part,
                           const TensorExchange& ranks) {
  const at::Tensor largest = at::empty({logits.size(0)}, logits.options().dtype(at::kFloat));
  const at::Tensor terms = at::empty({2, logits.size(0)}, logits.options().dtype(at::kDouble));
  const at::Tensor wide_labels = labels.to(at::kLong);  // once for both stages
  pick(&KernelTable::part_maxima, logits)(logits, largest);
  ranks.max(largest);
  pick(&KernelTable::part_terms, logits)(logits, wide_labels, part, largest, gradient.smoothing, terms);
  ranks.sum(terms);
  pick(&KernelTable::part_losses, logits)(logits, wide_labels, part, largest, terms, gradient, token_loss);
}

bool has_gradients(const LinearCrossEntropyOutputs& outputs, const LowRankLogits& term) {
  return outputs.grad_hidden.defined() || outputs.grad_weight.defined() || term.grad_values.defined() ||
         term.grad_weight.defined();
}

void check_term(const LowRankLogits& term, const at::Tensor& hidden, const at::Tensor& weight) {
  if (!term.values.defined()) return;
  const int64_t rank = term.values.size(1);
  check_tensor(term.values, "low-rank logits: values", {hidden.size(0), rank}, hidden.scalar_type());
  check_tensor(term.weight, "low-rank logits: weight", {weight.size(0), rank}, hidden.scalar_type());
  if (term.grad_values.defined())
    check_tensor(term.grad_values, "low-rank logits: grad_values", term.values.sizes(), hidden.scalar_type());
  if (term.grad_weight.defined())
    check_tensor(term.grad_weight, "low-rank logits: grad_weight", term.weight.sizes(), compute_type(hidden));
}

/// Computes the chunks one after the other; owns the workspace they share.
class ChunkedHead {
 public:
  ChunkedHead(const at::Tensor& hidden, const at::Tensor& weight, const LossGradient& gradient, int64_t chunk,
              const LinearCrossEntropyOutputs& outputs, const VocabularyPart& part,
              const TensorExchange& ranks, const LowRankLogits& term)
      : hidden_(hidden),
        weight_(weight),
        gradient_(gradient),
        chunk_gradient_(gradient),
        outputs_(outputs),
        part_(part),
        ranks_(ranks),
        term_(term),
        weight_written_(outputs.accumulate_weight) {
    logits_ = at::empty({std::min(chunk, hidden.size(0)), weight.size(0)}, hidden.options());
  }

  void run(int64_t begin, int64_t end, const at::Tensor& labels) {
    if (gradient_.weights.defined()) chunk_gradient_.weights = gradient_.weights.slice(0, begin, end);
    chunk_gradient_.soft = gradient_.soft.slice(begin, end);
    const at::Tensor token_loss = outputs_.token_loss.slice(0, begin, end);
    // Reading the labels costs nothing on the CPU; elsewhere it would wait for the device.
    if (labels.is_cpu() && !outputs_.logits.defined() && !has_valid_label(labels)) {
      token_loss.zero_();
      if (chunk_gradient_.soft.any()) chunk_gradient_.soft.divergence.zero_();
      for (const at::Tensor& gradient : {outputs_.grad_hidden, term_.grad_values})
        if (gradient.defined()) gradient.slice(0, begin, end).zero_();
      return;
    }
    const at::Tensor hidden = hidden_.slice(0, begin, end);
    const at::Tensor logits = logits_.slice(0, 0, end - begin);
    linear_product(hidden, weight_, logits);
    const LowRankLogits term = term_of(begin, end);
    if (term.values.defined()) add_low_rank(logits, term);
    if (gradient_.cap > 0) cap_logits(logits, gradient_.cap);
    if (outputs_.logits.defined()) outputs_.logits.slice(0, begin, end).copy_(logits);
    if (outputs_.top_ids.defined()) find_top(logits, begin, end);
    const bool with_gradients = has_gradients(outputs_, term_);
    losses(logits, labels, token_loss, with_gradients);
    if (!with_gradients) return;
    if (outputs_.grad_hidden.defined()) {
      linear_input_gradient(logits, weight_, at::Tensor(), outputs_.grad_hidden.slice(0, begin, end));
    }
    if (outputs_.grad_weight.defined()) add_weight_gradient(logits, hidden);
    add_gradients_of(term, logits);
  }

  /// Call it after all chunks: a gradient that no chunk wrote becomes zero.
  void finish() {
    if (outputs_.grad_weight.defined() && !weight_written_) outputs_.grad_weight.zero_();
    if (!term_.grad_weight.defined()) return;
    if (term_written_)
      term_.grad_weight.mul_(term_.factor);
    else
      term_.grad_weight.zero_();
  }

 private:
  /// The losses of a chunk; with `with_gradients` the logits become their gradient.
  void losses(const at::Tensor& logits, const at::Tensor& labels, const at::Tensor& token_loss,
              bool with_gradients) const {
    if (!ranks_.several()) {
      losses_of_all(logits, labels, token_loss, with_gradients);
    } else if (ranks_.parallel.whole_logits) {
      const at::Tensor whole = of_all_parts(logits, part_, ranks_);
      losses_of_all(whole, labels, token_loss, with_gradients);
      logits.copy_(whole.narrow(1, part_.begin, logits.size(1)));
    } else if (with_gradients && gradient_.loss) {
      throw Error("linear_cross_entropy: another loss needs the logits of the whole vocabulary");
    } else {
      const LossGradient gradient = with_gradients ? chunk_gradient_ : LossGradient();
      const auto entropy = [&](const at::Tensor& values, const LossGradient& of, const at::Tensor& losses) {
        cross_entropy_of_part(values, labels, of, losses, part_, ranks_);
      };
      losses_with_soft_targets(logits, labels, gradient, token_loss, {entropy, part_, ranks_});
    }
  }

  void find_top(const at::Tensor& logits, int64_t begin, int64_t end) const {
    const auto [values, ids] =
        at::topk(logits.narrow(1, 0, outputs_.top_vocabulary), outputs_.top_ids.size(1), /*dim=*/1);
    outputs_.top_logits.slice(0, begin, end).copy_(values);
    outputs_.top_ids.slice(0, begin, end).copy_(ids);
  }

  /// The same for logits of the whole vocabulary.
  void losses_of_all(const at::Tensor& logits, const at::Tensor& labels, const at::Tensor& token_loss,
                     bool with_gradients) const {
    if (with_gradients && gradient_.loss) {
      other_loss(logits, labels, chunk_gradient_, token_loss);
    } else if (with_gradients) {
      const auto entropy = [&](const at::Tensor& values, const LossGradient& of, const at::Tensor& losses) {
        cross_entropy_forward_backward(values, labels, of, losses);
      };
      losses_with_soft_targets(logits, labels, chunk_gradient_, token_loss, {entropy, {}, {}});
    } else {
      cross_entropy_forward(logits, labels, token_loss);
    }
  }

  /// That of some tokens; the gradient of its weight is that of all.
  LowRankLogits term_of(int64_t begin, int64_t end) const {
    LowRankLogits term = term_;
    for (at::Tensor* rows : {&term.values, &term.grad_values})
      if (rows->defined()) *rows = rows->slice(0, begin, end);
    return term;
  }

  void add_gradients_of(const LowRankLogits& term, const at::Tensor& grad_logits) {
    if (at::Tensor values = term.grad_values; values.defined())
      at::addmm_out(values, values, grad_logits, term.weight, 0, term.factor);
    if (!term.grad_weight.defined()) return;
    linear_weight_gradient(grad_logits, term.values, term.grad_weight, term_written_);
    term_written_ = true;
  }

  void add_weight_gradient(const at::Tensor& grad_logits, const at::Tensor& hidden) {
    linear_weight_gradient(grad_logits, hidden, outputs_.grad_weight, weight_written_);
    weight_written_ = true;
  }

  const at::Tensor& hidden_;
  const at::Tensor& weight_;
  const LossGradient& gradient_;
  LossGradient chunk_gradient_;  ///< with the weights of one chunk
  const LinearCrossEntropyOutputs& outputs_;
  const VocabularyPart& part_;
  const TensorExchange& ranks_;
  const LowRankLogits& term_;
  bool weight_written_;
  bool term_written_ = false;
  at::Tensor logits_;  ///< of one chunk, then their gradient
};

void check_soft(const LossGradient& gradient, const at::Tensor& labels) {
  const SoftTargets& soft = gradient.soft;
  if (!soft.any()) return;
  if (gradient.loss || gradient.smoothing > 0.0)
    throw Error("linear_cross_entropy: soft targets go neither with label smoothing nor with another loss");
  if (soft.temperature <= 0.0)
    throw Error(format("linear_cross_entropy: soft.temperature = {}: must be above 0", soft.temperature));
  check_shape(soft.ids, "linear_cross_entropy soft.ids", {labels.size(0), soft.ids.size(1)});
  check_tensor(soft.log_probs, "linear_cross_entropy soft.log_probs", soft.ids.sizes(), at::kFloat);
  check_tensor(soft.divergence, "linear_cross_entropy soft.divergence", labels.sizes(), at::kFloat);
}

void check_top(const at::Tensor& weight, const at::Tensor& hidden, const LinearCrossEntropyOutputs& outputs,
               const TensorExchange& ranks) {
  const int64_t count = outputs.top_ids.size(1);
  if (ranks.several() || outputs.grad_hidden.defined() || outputs.grad_weight.defined())
    throw Error(
        "linear_cross_entropy: the largest logits are those of a whole vocabulary, without gradients");
  if (outputs.top_vocabulary > weight.size(0) || count > outputs.top_vocabulary)
    throw Error(format("linear_cross_entropy: {} of {} logits asked for, there are {}", count,
                       outputs.top_vocabulary, weight.size(0)));
  check_tensor(outputs.top_ids, "linear_cross_entropy top_ids", {hidden.size(0), count}, at::kInt);
  check_tensor(outputs.top_logits, "linear_cross_entropy top_logits", {hidden.size(0), count}, at::kFloat);
}

void check_linear_operands(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels,
                           const LossGradient& gradient, const LinearCrossEntropyOutputs& outputs,
                           const TensorExchange& ranks, const LowRankLogits& term) {
  check_shape(hidden, "linear_cross_entropy hidden", {hidden.size(0), hidden.size(1)});
  check_tensor(weight, "linear_cross_entropy weight", {weight.size(0), hidden.size(1)}, hidden.scalar_type());
  check_shape(labels, "linear_cross_entropy labels", {hidden.size(0)});
  check_tensor(outputs.token_loss, "linear_cross_entropy token_loss", {hidden.size(0)}, compute_type(hidden));
  if (outputs.grad_hidden.defined()) {
    check_tensor(outputs.grad_hidden, "linear_cross_entropy grad_hidden", hidden.sizes(),
                 hidden.scalar_type());
  }
  if (outputs.grad_weight.defined()) {
    check_tensor(outputs.grad_weight, "linear_cross_entropy grad_weight", weight.sizes(),
                 compute_type(hidden));
  }
  check_term(term, hidden, weight);
  if (has_gradients(outputs, term)) check_gradient(gradient, labels, "linear_cross_entropy");
  check_soft(gradient, labels);
  if (outputs.top_ids.defined()) check_top(weight, hidden, outputs, ranks);
  if (outputs.logits.defined()) {
    check_tensor(outputs.logits, "linear_cross_entropy logits", {hidden.size(0), weight.size(0)},
                 compute_type(hidden));
    if (has_gradients(outputs, term)) {
      throw Error(
          "linear_cross_entropy: logits are returned only without gradients; "
          "request either logits or gradients");
    }
  }
}

/// Labels in this part of the vocabulary.
struct OwnLabels {
  at::Tensor index;  ///< [N, 1] column of the logits; 0 for others
  at::Tensor has;    ///< [N, 1] bool
};

OwnLabels own_labels(const at::Tensor& logits, const at::Tensor& labels, const VocabularyPart& part) {
  const at::Tensor shifted = labels.unsqueeze(1) - part.begin;
  const at::Tensor ignored = labels.unsqueeze(1).eq(kIgnoredLabel);
  // Without other parts a label outside the vocabulary stays, which indexing refuses.
  const at::Tensor other =
      part.size == 0 ? ignored : ignored.logical_or(shifted.lt(0)).logical_or(shifted.ge(logits.size(1)));
  return {shifted.masked_fill(other, 0), other.logical_not()};
}

/// logits - largest in the compute type.
at::Tensor centred_logits(const at::Tensor& logits, const at::Tensor& largest) {
  return logits.to(compute_type(logits)) - largest.unsqueeze(1);
}

}  // namespace

at::Tensor of_all_parts(const at::Tensor& logits, const VocabularyPart& part, const TensorExchange& ranks) {
  at::Tensor all = at::zeros({logits.size(0), part.size}, logits.options());
  all.narrow(1, part.begin, logits.size(1)).copy_(logits);
  ranks.sum(all);  // adding zeros changes no logit
  return all;
}

void add_low_rank(const at::Tensor& logits, const LowRankLogits& term) {
  at::Tensor sum = logits;
  at::addmm_out(sum, sum, term.values, term.weight.t(), 1, term.factor);
}

void cap_logits(const at::Tensor& logits, double cap) {
  pick(&KernelTable::cap_logits, logits)(logits, cap);
}

void cross_entropy_forward(const at::Tensor& logits, const at::Tensor& labels, const at::Tensor& token_loss) {
  check_operands(logits, labels, token_loss);
  pick(&KernelTable::cross_entropy, logits)(logits, labels, {}, token_loss);
}

void cross_entropy_forward_backward(const at::Tensor& logits, const at::Tensor& labels,
                                    const LossGradient& gradient, const at::Tensor& token_loss) {
  check_operands(logits, labels, token_loss);
  check_gradient(gradient, labels, "cross_entropy");
  pick(&KernelTable::cross_entropy, logits)(logits, labels, gradient, token_loss);
}

void linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels,
                          const LossGradient& gradient, int64_t chunk,
                          const LinearCrossEntropyOutputs& outputs, const VocabularyPart& part,
                          const TensorExchange& ranks, const LowRankLogits& term) {
  check_linear_operands(hidden, weight, labels, gradient, outputs, ranks, term);
  if (chunk < 1) throw Error(format("linear_cross_entropy: chunk = {} tokens: must be at least 1", chunk));
  ChunkedHead head(hidden, weight, gradient, chunk, outputs, part, ranks, term);
  const int64_t tokens = hidden.size(0);
  for (int64_t begin = 0; begin < tokens; begin += chunk) {
    const int64_t end = std::min(begin + chunk, tokens);
    head.run(begin, end, labels.slice(0, begin, end));
  }
  head.finish();
}

void reference::cap_logits(const at::Tensor& logits, double cap) {
  logits.copy_((logits / cap).tanh() * cap);
}

void reference::cross_entropy(const at::Tensor& logits, const at::Tensor& labels,
                              const LossGradient& gradient, const at::Tensor& token_loss) {
  const at::Tensor wide_labels = labels.to(at::kLong);
  const at::Tensor largest = logits.amax(1).to(compute_type(logits));
  const at::Tensor terms = at::empty({2, logits.size(0)}, logits.options().dtype(at::kDouble));
  part_terms(logits, wide_labels, {}, largest, gradient.smoothing, terms);
  part_losses(logits, wide_labels, {}, largest, terms, gradient, token_loss);
}

void reference::part_maxima(const at::Tensor& logits, const at::Tensor& largest) {
  largest.copy_(logits.amax(1));
}

void reference::part_terms(const at::Tensor& logits, const at::Tensor& labels, const VocabularyPart& part,
                           const at::Tensor& largest, double smoothing, const at::Tensor& terms) {
  const at::Tensor centred = centred_logits(logits, largest);
  const auto [index, has] = own_labels(logits, labels, part);
  terms.select(0, 0).copy_(centred.exp().sum(1, /*keepdim=*/false, at::kDouble));
  const at::Tensor of_label = at::where(has, centred.gather(1, index), 0.0).squeeze(1).to(at::kDouble);
  const double share = smoothing / static_cast<double>(part.tokens(logits.size(1)));
  terms.select(0, 1).copy_(smoothing > 0 ? of_label * (1.0 - smoothing) +
                                               centred.sum(1, /*keepdim=*/false, at::kDouble) * share
                                         : of_label);
}

void reference::part_losses(const at::Tensor& logits, const at::Tensor& labels, const VocabularyPart& part,
                            const at::Tensor& largest, const at::Tensor& terms, const LossGradient& gradient,
                            const at::Tensor& token_loss) {
  const at::Tensor ignored = labels.eq(kIgnoredLabel);
  const at::Tensor log_sum = terms.select(0, 0).log();
  token_loss.copy_((log_sum - terms.select(0, 1)).masked_fill(ignored, 0));
  if (!gradient.scale.defined()) return;
  const auto [index, has] = own_labels(logits, labels, part);
  const at::Tensor centred = centred_logits(logits, largest);
  const at::ScalarType type = centred.scalar_type();
  at::Tensor scale = gradient.scale.expand_as(log_sum);
  if (gradient.weights.defined()) scale = scale * gradient.weights;
  const at::Tensor growth = (log_sum + largest) * (2.0 * gradient.z_weight) + gradient.share;
  at::Tensor grad = (centred - log_sum.to(type).unsqueeze(1)).exp() * growth.to(type).unsqueeze(1);
  grad.sub_(gradient.smoothing / static_cast<double>(part.tokens(logits.size(1))));
  grad.scatter_add_(1, index, has.to(type) * (gradient.smoothing - gradient.label_share()));
  grad.mul_(scale.to(type).unsqueeze(1));
  if (gradient.cap > 0) grad.mul_(1 - (logits.to(type) / gradient.cap).square());
  logits.copy_(grad.masked_fill(ignored.unsqueeze(1), 0));
}

}  // namespace stepforge
