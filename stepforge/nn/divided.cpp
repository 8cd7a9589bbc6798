// SPDX-License-Identifier: Apache-2.0
#include <torch/csrc/autograd/custom_function.h>

#include "stepforge/nn/function_data.h"
#include "stepforge/nn/functions.h"

namespace stepforge {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct EnterFunction : torch::autograd::Function<EnterFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const TensorSums* sums) {
    save_pointer(*ctx, "sums", sums);
    return x;
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    // In place: the projection's backward made this tensor, and nothing else uses it.
    saved_pointer<TensorSums>(*ctx, "sums")->sum(gradients[0]);
    return {gradients[0], at::Tensor()};
  }
};

struct LeaveFunction : torch::autograd::Function<LeaveFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const TensorSums* sums) {
    ctx->mark_dirty({x});
    sums->sum(x);
    return x;
  }
  static variable_list backward(AutogradContext*, variable_list gradients) {
    return {gradients[0], at::Tensor()};
  }
};

}  // namespace

VocabularyPart vocabulary_part(const ParameterSpec& table) {
  if (!table.is_sliced()) return {};
  return {table.slice_of(0).offsets.at(0), table.tensor_shape(0).at(0)};
}

at::Tensor enter_divided(const at::Tensor& x, const TensorSums& sums) {
  return sums.several() ? EnterFunction::apply(x, &sums) : x;
}

at::Tensor leave_divided(const at::Tensor& x, const TensorSums& sums) {
  return sums.several() ? LeaveFunction::apply(x, &sums) : x;
}

}  // namespace stepforge
