// SPDX-License-Identifier: Apache-2.0
// The slots of layers whose matrices are divided over ranks, and linear layers that begin or end with one.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/custom_function.h>

#include "stepforge/nn/function_data.h"
#include "stepforge/nn/functions.h"
#include "stepforge/nn/slices.h"

namespace stepforge {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// A copy of this part's slice.
at::Tensor own_slice(const at::Tensor& whole, const TensorExchange& exchange) {
  const ShardRange own = exchange.parallel.part_of(whole.size(0));
  return whole.narrow(0, own.begin, slice_size(whole.size(0), exchange)).clone(at::MemoryFormat::Contiguous);
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
    if (parameter->trained()) ctx->save_for_backward({x});
    save_pointer(*ctx, "parameter", parameter);
    save_pointer(*ctx, "exchange", exchange);
    if (!exchange->parallel.async) return at::mm(all_slices(x, *exchange), weight.t());
    const at::Tensor product =
        at::empty({exchange->parallel.degree * x.size(0), weight.size(0)}, x.options());
    product_of_slices(x, weight, *exchange, product);
    return product;
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    auto* parameter = saved_pointer<Parameter>(*ctx, "parameter");
    const auto& exchange = *saved_pointer<TensorExchange>(*ctx, "exchange");
    const at::Tensor x = parameter->trained() ? ctx->get_saved_variables()[0] : at::Tensor();
    const at::NoGradGuard no_grad;
    at::Tensor input_gradient;
    if (exchange.parallel.async) {
      if (ctx->needs_input_grad(0))
        input_gradient = at::empty({slice_size(gradients[0].size(0), exchange), parameter->value().size(1)},
                                   gradients[0].options());
      product_of_slices_backward(gradients[0], x, *parameter, exchange, input_gradient);
    } else {
      if (parameter->trained()) parameter->add_product(gradients[0], all_slices(x, exchange));
      if (ctx->needs_input_grad(0))
        input_gradient = sum_of_slice(at::mm(gradients[0], parameter->value()), exchange);
    }
    return {input_gradient, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

/// A linear layer whose result is the sum of a slice of the tokens, of which the shares leave while the others are
/// computed.
struct LinearToSliceFunction : torch::autograd::Function<LinearToSliceFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            Parameter* parameter, const TensorExchange* exchange) {
    if (parameter->trained()) ctx->save_for_backward({x});
    save_pointer(*ctx, "parameter", parameter);
    save_pointer(*ctx, "exchange", exchange);
    const at::Tensor of_slice = at::empty({slice_size(x.size(0), *exchange), weight.size(0)}, x.options());
    product_to_slice(x, weight, *exchange, of_slice);
    return of_slice;
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    auto* parameter = saved_pointer<Parameter>(*ctx, "parameter");
    const auto& exchange = *saved_pointer<TensorExchange>(*ctx, "exchange");
    const at::NoGradGuard no_grad;
    at::Tensor input_gradient;
    if (ctx->needs_input_grad(0))
      input_gradient =
          at::empty({exchange.parallel.degree * gradients[0].size(0), parameter->value().size(1)},
                    gradients[0].options());
    const at::Tensor x = parameter->trained() ? ctx->get_saved_variables()[0] : at::Tensor();
    product_to_slice_backward(gradients[0].contiguous(), x, *parameter, exchange, input_gradient);
    return {input_gradient, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

/// A slice of the tokens: of their sum over the ranks, or if the layer is not divided, of what every rank has.
struct LeaveToSliceFunction : torch::autograd::Function<LeaveToSliceFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, bool divided,
                            const TensorExchange* exchange) {
    save_pointer(*ctx, "exchange", exchange);
    return divided ? sum_of_slice(x, *exchange) : own_slice(x, *exchange);
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const auto& exchange = *saved_pointer<TensorExchange>(*ctx, "exchange");
    return {all_slices(gradients[0].contiguous(), exchange), at::Tensor(), at::Tensor()};
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

}  // namespace

bool takes_slice(const TensorExchange& exchange, const Context& context) {
  return exchange.several() && exchange.parallel.sequence && context.cache == nullptr;
}

at::Tensor all_slices(const at::Tensor& slice, const TensorExchange& exchange) {
  at::Tensor whole = at::empty({exchange.parallel.degree * slice.size(0), slice.size(1)}, slice.options());
  exchange.gather(slice, whole);
  return whole;
}

at::Tensor sum_of_slice(const at::Tensor& whole, const TensorExchange& exchange) {
  at::Tensor slice = at::empty({slice_size(whole.size(0), exchange), whole.size(1)}, whole.options());
  exchange.sum_slice(whole, slice);
  return slice;
}

at::Tensor all_tokens(const at::Tensor& x, const TensorExchange& exchange, const Context& context) {
  return takes_slice(exchange, context) ? all_slices(x, exchange) : x;
}

at::Tensor enter_layer(const at::Tensor& x, const TensorExchange& exchange, const Context& context) {
  return takes_slice(exchange, context) ? GatherSlicesFunction::apply(x, &exchange) : x;
}

at::Tensor enter_linear(const at::Tensor& x, Parameter& weight, const TensorExchange& exchange,
                        const Context& context) {
  if (!is_divided(weight)) return linear(enter_layer(x, exchange, context), weight);
  if (takes_slice(exchange, context))
    return LinearOfSliceFunction::apply(x, weight.value(), &weight, &exchange);
  return linear(exchange.several() ? EnterFunction::apply(x, &exchange) : x, weight);
}

at::Tensor leave_layer(const at::Tensor& x, bool divided, const TensorExchange& exchange,
                       const Context& context) {
  if (takes_slice(exchange, context)) return LeaveToSliceFunction::apply(x, divided, &exchange);
  return divided && exchange.several() ? LeaveFunction::apply(x, &exchange) : x;
}

at::Tensor leave_linear(const at::Tensor& x, Parameter& weight, const TensorExchange& exchange,
                        const Context& context) {
  const bool divided = is_divided(weight);
  if (divided && exchange.parallel.async && takes_slice(exchange, context))
    return LinearToSliceFunction::apply(x, weight.value(), &weight, &exchange);
  return leave_layer(linear(x, weight), divided, exchange, context);
}

}  // namespace stepforge
