// SPDX-License-Identifier: Apache-2.0
#include "stepforge/kernels/cross_entropy.h"

#include <algorithm>

#include <ATen/TensorOperators.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/kernels/cpu/kernels.h"
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

cpu::LogitsGradient for_kernel(const LossGradient& gradient) {
  return {gradient.scale.defined() ? gradient.scale.const_data_ptr<double>() : nullptr, gradient.z_weight,
          gradient.weights.defined() ? gradient.weights.const_data_ptr<float>() : nullptr, gradient.cap,
          gradient.smoothing};
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
  if (!has_cpu_kernel(logits)) {
    throw Error(format("linear_cross_entropy: a divided vocabulary needs fp32 or bf16 on the CPU, not {}",
                       c10::toString(logits.scalar_type())));
  }
  const at::Tensor largest = at::empty({logits.size(0)}, at::kFloat);
  const at::Tensor terms = at::empty({2, logits.size(0)}, at::kDouble);
  const at::Tensor wide_labels = labels.to(at::kLong);  // once for both stages
  cpu::part_maxima(logits, largest);
  ranks.max(largest);
  cpu::part_terms(logits, wide_labels, part, largest, gradient.smoothing, terms);
  ranks.sum(terms);
  cpu::part_losses(logits, wide_labels, part, largest, terms, for_kernel(gradient), token_loss);
}

/// Computes the chunks one after the other; owns the workspace they share.
class ChunkedHead {
 public:
  ChunkedHead(const at::Tensor& hidden, const at::Tensor& weight, const LossGradient& gradient, int64_t chunk,
              const LinearCrossEntropyOutputs& outputs, const VocabularyPart& part,
              const TensorExchange& ranks)
      : hidden_(hidden),
        weight_(weight),
        gradient_(gradient),
        chunk_gradient_(gradient),
        outputs_(outputs),
        part_(part),
        ranks_(ranks),
        weight_written_(outputs.accumulate_weight) {
    logits_ = at::empty({std::min(chunk, hidden.size(0)), weight.size(0)}, hidden.options());
    if (outputs.grad_weight.defined() && outputs.grad_weight.scalar_type() != hidden.scalar_type()) {
      narrow_product_ = at::empty(weight.sizes(), hidden.options());
    }
  }

  void run(int64_t begin, int64_t end, const at::Tensor& labels) {
    if (gradient_.weights.defined()) chunk_gradient_.weights = gradient_.weights.slice(0, begin, end);
    const at::Tensor token_loss = outputs_.token_loss.slice(0, begin, end);
    // Reading the labels costs nothing on the CPU; elsewhere it would wait for the device.
    if (labels.is_cpu() && !outputs_.logits.defined() && !has_valid_label(labels)) {
      token_loss.zero_();
      if (outputs_.grad_hidden.defined()) outputs_.grad_hidden.slice(0, begin, end).zero_();
      return;
    }
    const at::Tensor hidden = hidden_.slice(0, begin, end);
    at::Tensor logits = logits_.slice(0, 0, end - begin);
    at::mm_out(logits, hidden, weight_.t());
    if (gradient_.cap > 0) cap_logits(logits, gradient_.cap);
    if (outputs_.logits.defined()) outputs_.logits.slice(0, begin, end).copy_(logits);
    const bool with_gradients = outputs_.grad_hidden.defined() || outputs_.grad_weight.defined();
    losses(logits, labels, token_loss, with_gradients);
    if (!with_gradients) return;
    if (outputs_.grad_hidden.defined()) {
      at::Tensor grad_hidden = outputs_.grad_hidden.slice(0, begin, end);
      at::mm_out(grad_hidden, logits, weight_);
    }
    if (outputs_.grad_weight.defined()) add_weight_gradient(logits, hidden);
  }

  /// Call it after all chunks: a gradient that no chunk wrote becomes zero.
  void finish() {
    if (outputs_.grad_weight.defined() && !weight_written_) outputs_.grad_weight.zero_();
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
      cross_entropy_of_part(logits, labels, with_gradients ? chunk_gradient_ : LossGradient(), token_loss,
                            part_, ranks_);
    }
  }

  /// The same for logits of the whole vocabulary.
  void losses_of_all(const at::Tensor& logits, const at::Tensor& labels, const at::Tensor& token_loss,
                     bool with_gradients) const {
    if (with_gradients && gradient_.loss) {
      other_loss(logits, labels, chunk_gradient_, token_loss);
    } else if (with_gradients) {
      cross_entropy_forward_backward(logits, labels, chunk_gradient_, token_loss);
    } else {
      cross_entropy_forward(logits, labels, token_loss);
    }
  }

  void add_weight_gradient(const at::Tensor& grad_logits, const at::Tensor& hidden) {
    at::Tensor target = outputs_.grad_weight;
    if (narrow_product_.defined()) {
      at::mm_out(narrow_product_, grad_logits.t(), hidden);
      write_or_add(target, narrow_product_, weight_written_);
    } else if (weight_written_) {
      at::addmm_out(target, target, grad_logits.t(), hidden);
    } else {
      at::mm_out(target, grad_logits.t(), hidden);
    }
    weight_written_ = true;
  }

  const at::Tensor& hidden_;
  const at::Tensor& weight_;
  const LossGradient& gradient_;
  LossGradient chunk_gradient_;  ///< with the weights of one chunk
  const LinearCrossEntropyOutputs& outputs_;
  const VocabularyPart& part_;
  const TensorExchange& ranks_;
  bool weight_written_;
  at::Tensor logits_;          ///< of one chunk, then their gradient
  at::Tensor narrow_product_;  ///< one chunk's share of grad_weight in hidden's type; undefined if it is fp32
};

void check_linear_operands(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels,
                           const LossGradient& gradient, const LinearCrossEntropyOutputs& outputs) {
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
  if (outputs.grad_hidden.defined() || outputs.grad_weight.defined())
    check_gradient(gradient, labels, "linear_cross_entropy");
  if (outputs.logits.defined()) {
    check_tensor(outputs.logits, "linear_cross_entropy logits", {hidden.size(0), weight.size(0)},
                 compute_type(hidden));
    if (outputs.grad_hidden.defined() || outputs.grad_weight.defined()) {
      throw Error(
          "linear_cross_entropy: logits are returned only without gradients; "
          "request either logits or gradients");
    }
  }
}

}  // namespace

at::Tensor of_all_parts(const at::Tensor& logits, const VocabularyPart& part, const TensorExchange& ranks) {
  at::Tensor all = at::zeros({logits.size(0), part.size}, logits.options());
  all.narrow(1, part.begin, logits.size(1)).copy_(logits);
  ranks.sum(all);  // adding zeros changes no logit
  return all;
}

void cap_logits(const at::Tensor& logits, double cap) {
  if (has_cpu_kernel(logits)) {
    cpu::cap_logits(logits, cap);
  } else {
    logits.copy_((logits / cap).tanh() * cap);
  }
}

void cross_entropy_forward(const at::Tensor& logits, const at::Tensor& labels, const at::Tensor& token_loss) {
  check_operands(logits, labels, token_loss);
  if (has_cpu_kernel(logits)) {
    cpu::cross_entropy(logits, labels, {}, token_loss);
  } else {
    cross_entropy_forward_reference(logits, labels, token_loss);
  }
}

void cross_entropy_forward_backward(const at::Tensor& logits, const at::Tensor& labels,
                                    const LossGradient& gradient, const at::Tensor& token_loss) {
  check_operands(logits, labels, token_loss);
  check_gradient(gradient, labels, "cross_entropy");
  if (has_cpu_kernel(logits)) {
    cpu::cross_entropy(logits, labels, for_kernel(gradient), token_loss);
  } else {
    cross_entropy_forward_backward_reference(logits, labels, gradient, token_loss);
  }
}

void linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels,
                          const LossGradient& gradient, int64_t chunk,
                          const LinearCrossEntropyOutputs& outputs, const VocabularyPart& part,
                          const TensorExchange& ranks) {
  check_linear_operands(hidden, weight, labels, gradient, outputs);
  if (chunk < 1) throw Error(format("linear_cross_entropy: chunk = {} tokens: must be at least 1", chunk));
  ChunkedHead head(hidden, weight, gradient, chunk, outputs, part, ranks);
  const int64_t tokens = hidden.size(0);
  for (int64_t begin = 0; begin < tokens; begin += chunk) {
    const int64_t end = std::min(begin + chunk, tokens);
    head.run(begin, end, labels.slice(0, begin, end));
  }
  head.finish();
}

void cross_entropy_forward_reference(const at::Tensor& logits, const at::Tensor& labels,
                                     const at::Tensor& token_loss) {
  const at::Tensor wide = logits.to(compute_type(logits));
  const at::Tensor valid = labels.ne(kIgnoredLabel);
  const at::Tensor index = labels.to(at::kLong).masked_fill(valid.logical_not(), 0).unsqueeze(1);
  const at::Tensor loss = at::logsumexp(wide, {1}) - wide.gather(1, index).squeeze(1);
  token_loss.copy_(loss.masked_fill(valid.logical_not(), 0));
}

void cross_entropy_forward_backward_reference(const at::Tensor& logits, const at::Tensor& labels,
                                              const LossGradient& gradient, const at::Tensor& token_loss) {
  cross_entropy_forward_reference(logits, labels, token_loss);
  const at::Tensor ignored = labels.eq(kIgnoredLabel).unsqueeze(1);
  const at::Tensor index = labels.to(at::kLong).unsqueeze(1).masked_fill(ignored, 0);
  const at::Tensor wide = logits.to(compute_type(logits));
  const at::Tensor lse = at::logsumexp(wide, {1}, /*keepdim=*/true);
  const double smoothing = gradient.smoothing;
  if (smoothing > 0) {
    const at::Tensor uniform = (lse - wide.mean(1, /*keepdim=*/true)).masked_fill(ignored, 0).squeeze(1);
    token_loss.copy_(token_loss * (1.0 - smoothing) + uniform * smoothing);
  }
  at::Tensor grad = wide.softmax(1) * (lse * (2.0 * gradient.z_weight) + 1.0);
  grad.sub_(smoothing / static_cast<double>(wide.size(1)));
  grad.scatter_add_(1, index, at::full({1, 1}, smoothing - 1.0, grad.options()).expand_as(index));
  grad = grad * gradient.scale;
  if (gradient.weights.defined()) grad = grad * gradient.weights.unsqueeze(1);
  if (gradient.cap > 0) grad = grad * (1 - (wide / gradient.cap).square());
  logits.copy_(grad.masked_fill(ignored, 0));
}

void linear_cross_entropy_reference(const at::Tensor& hidden, const at::Tensor& weight,
                                    const at::Tensor& labels, const LossGradient& gradient,
                                    const LinearCrossEntropyOutputs& outputs) {
  const at::ScalarType type = compute_type(hidden);
  const at::Tensor logits = at::mm(hidden.to(type), weight.to(type).t());
  if (gradient.cap > 0) cap_logits(logits, gradient.cap);
  if (outputs.logits.defined()) outputs.logits.copy_(logits);
  cross_entropy_forward_backward_reference(logits, labels, gradient, outputs.token_loss);
  if (outputs.grad_hidden.defined()) outputs.grad_hidden.copy_(at::mm(logits, weight.to(type)));
  if (outputs.grad_weight.defined()) {
    write_or_add(outputs.grad_weight, at::mm(logits.t(), hidden.to(type)), outputs.accumulate_weight);
  }
}

}  // namespace stepforge
