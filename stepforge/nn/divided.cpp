// SPDX-License-Identifier: Apache-2.0
// The slots of layers whose matrices are divided over ranks, and linear layers that begin with one.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/custom_function.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/nn/function_data.h"
#include "stepforge/nn/functions.h"

namespace stepforge {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

int64_t slice_size(const at::Tensor& whole, int64_t degree) {
  if (whole.size(0) % degree != 0)
    throw Error(format("{} tokens cannot be divided into {} equal slices", whole.size(0), degree));
  return whole.size(0) / degree;
}

/// A copy of this part's slice.
at::Tensor own_slice(const at::Tensor& whole, const TensorExchange& exchange) {
  const ShardRange own = exchange.parallel.part_of(whole.size(0));
  return whole.narrow(0, own.begin, slice_size(whole, exchange.parallel.degree))
      .clone(at::MemoryFormat::Contiguous);
}

struct EnterFunction : torch::autograd::Function<EnterFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const TensorExchange* exchange) {
    save_pointer(*ctx, "exchange", exchange);
    return x;
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    // In place: the projection's backward made this tensor, and nothing else uses it.
    saved_pointer<TensorExchange>(*ctx, "exchange")->sum(gradients[0]);
    return {gradients[0], at::Tensor()};
  }
};

struct LeaveFunction : torch::autograd::Function<LeaveFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const TensorExchange* exchange) {
    ctx->mark_dirty({x});
    exchange->sum(x);
    return x;
  }
  static variable_list backward(AutogradContext*, variable_list gradients) {
    return {gradients[0], at::Tensor()};
  }
};

/// A linear layer of all tokens whose input is a slice of them. All of the input is gathered again in backward,
/// so that a rank keeps only its slice.
struct LinearOfSliceFunction : torch::autograd::Function<LinearOfSliceFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            Parameter* parameter, const TensorExchange* exchange) {
    ctx->save_for_backward({x});
    save_pointer(*ctx, "parameter", parameter);
    save_pointer(*ctx, "exchange", exchange);
    return at::mm(all_slices(x, *exchange), weight.t());
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    auto* parameter = saved_pointer<Parameter>(*ctx, "parameter");
    const auto& exchange = *saved_pointer<TensorExchange>(*ctx, "exchange");
    const at::Tensor& gradient = gradients[0];
    const at::NoGradGuard no_grad;
    if (parameter->trained())
      parameter->add_product(gradient, all_slices(ctx->get_saved_variables()[0], exchange));
    at::Tensor input_gradient;
    if (ctx->needs_input_grad(0))
      input_gradient = sum_of_slice(at::mm(gradient, parameter->value()), exchange);
    return {input_gradient, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

struct LeaveToSliceFunction : torch::autograd::Function<LeaveToSliceFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const TensorExchange* exchange) {
    save_pointer(*ctx, "exchange", exchange);
    return sum_of_slice(x, *exchange);
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const auto& exchange = *saved_pointer<TensorExchange>(*ctx, "exchange");
    return {all_slices(gradients[0].contiguous(), exchange), at::Tensor()};
  }
};

/// The tokens of all slices, for a layer that every rank has whole: so it also has all of their gradient.
struct GatherSlicesFunction : torch::autograd::Function<GatherSlicesFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const TensorExchange* exchange) {
    save_pointer(*ctx, "exchange", exchange);
    return all_slices(x, *exchange);
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    return {own_slice(gradients[0], *saved_pointer<TensorExchange>(*ctx, "exchange")), at::Tensor()};
  }
};

/// The opposite: a slice of what every rank has.
struct TakeSliceFunction : torch::autograd::Function<TakeSliceFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const TensorExchange* exchange) {
    save_pointer(*ctx, "exchange", exchange);
    return own_slice(x, *exchange);
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const auto& exchange = *saved_pointer<TensorExchange>(*ctx, "exchange");
    return {all_slices(gradients[0].contiguous(), exchange), at::Tensor()};
  }
};

}  // namespace

VocabularyPart vocabulary_part(const ParameterSpec& table) {
  if (!table.is_sliced()) return {};
  return {table.slice_of(0).offsets.at(0), table.tensor_shape(0).at(0)};
}

bool takes_slice(const TensorExchange& exchange, const Context& context) {
  return exchange.several() && exchange.parallel.sequence && context.cache == nullptr;
}

at::Tensor all_slices(const at::Tensor& slice, const TensorExchange& exchange) {
  at::Tensor whole = at::empty({exchange.parallel.degree * slice.size(0), slice.size(1)}, slice.options());
  exchange.gather(slice, whole);
  return whole;
}

at::Tensor sum_of_slice(const at::Tensor& whole, const TensorExchange& exchange) {
  at::Tensor slice = at::empty({slice_size(whole, exchange.parallel.degree), whole.size(1)}, whole.options());
  exchange.sum_slice(whole, slice);
  return slice;
}

at::Tensor all_tokens(const at::Tensor& x, const TensorExchange& exchange, const Context& context) {
  return takes_slice(exchange, context) ? all_slices(x, exchange) : x;
}

at::Tensor enter_linear(const at::Tensor& x, Parameter& weight, const TensorExchange& exchange,
                        const Context& context) {
  const bool slice = takes_slice(exchange, context);
  if (!is_divided(weight)) return linear(slice ? GatherSlicesFunction::apply(x, &exchange) : x, weight);
  if (slice) return LinearOfSliceFunction::apply(x, weight.value(), &weight, &exchange);
  return linear(exchange.several() ? EnterFunction::apply(x, &exchange) : x, weight);
}

at::Tensor leave_layer(const at::Tensor& x, bool divided, const TensorExchange& exchange,
                       const Context& context) {
  if (takes_slice(exchange, context)) {
    if (!divided) return TakeSliceFunction::apply(x, &exchange);
    return LeaveToSliceFunction::apply(x, &exchange);
  }
  return divided && exchange.several() ? LeaveFunction::apply(x, &exchange) : x;
}

}  // namespace stepforge
