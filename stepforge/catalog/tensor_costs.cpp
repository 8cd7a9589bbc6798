// SPDX-License-Identifier: Apache-2.0
#include "stepforge/catalog/tensor_costs.h"

#include <utility>

namespace stepforge {

namespace {

/// [*, in] x [in, out]. Keeps its input unless its producer does. Backward computes the gradient of the
/// weight and then that of the input.
void add_linear(std::vector<CallSpec>& calls, const std::string& name, const std::string& weight, int64_t in,
                int64_t out, bool keeps_input) {
  CallSpec call{.name = name, .rule = TypeRule::linear, .weights = {weight}};
  call.flops = 2.0 * static_cast<double>(in) * static_cast<double>(out);
  call.output.compute = out;
  call.saves.compute = keeps_input ? in : 0;
  call.queued_saves = call.saves;
  call.gradient.compute = in;
  call.weight_workspace.narrow = in * out;
  calls.push_back(std::move(call));
}

/// The exchange passes slices between ranks, each its own to every other one, beside the products.
void pass_slices(std::vector<Exchange>& exchanges, int64_t width, const TensorParallel& tensor) {
  for (Exchange& exchange : exchanges) {
    exchange.elements = {.slice_compute = (tensor.degree - 1) * width};
    exchange.beside = true;
  }
}

/// All slices of the input arrive, and the shares of its gradient leave, while the product of backward is made.
void enter_in_slices(CallSpec& enter, CallSpec& linear, int64_t width, const TensorParallel& tensor) {
  for (std::vector<Exchange>* exchanges :
       {&enter.forward_exchanges, &enter.backward_exchanges, &linear.backward_exchanges})
    pass_slices(*exchanges, width, tensor);
  // Shares on their way to other ranks, and theirs for this one.
  linear.backward_workspace.token = {.slice_compute = int64_t{2} * (tensor.degree - 1) * width};
  linear.weights_beside = true;
}

/// The shares of the result leave while the product is made, and in backward all slices of the gradient arrive.
void leave_in_slices(CallSpec& linear, CallSpec& leave, int64_t width, const TensorParallel& tensor) {
  pass_slices(leave.forward_exchanges, width, tensor);
  pass_slices(leave.backward_exchanges, width, tensor);
  leave.forward_workspace.token = {.slice_compute = int64_t{2} * (tensor.degree - 1) * width};
  linear.weights_beside = true;
}

}  // namespace

Exchange over_tensor(ExchangeKind kind, Elements elements) {
  return {BlockAxis::tensor, kind, elements};
}

void add_enter(std::vector<CallSpec>& calls, int64_t width, const TensorParallel& tensor) {
  if (tensor.degree == 1 || (!tensor.divided && !tensor.sequence)) return;
  CallSpec enter{.name = "enter", .rule = TypeRule::exchange};
  if (tensor.sequence) enter.forward_exchanges = {over_tensor(ExchangeKind::gather, {width})};
  if (tensor.divided) {
    enter.backward_exchanges = {
        over_tensor(tensor.sequence ? ExchangeKind::sum_slice : ExchangeKind::sum, {width})};
  } else {
    enter.backward_exchanges = {over_tensor(ExchangeKind::slice, {})};
    enter.output.compute = width;
    enter.gradient.slice_compute = width;
  }
  calls.push_back(std::move(enter));
}

void add_leave(std::vector<CallSpec>& calls, int64_t width, const TensorParallel& tensor) {
  if (tensor.degree == 1 || (!tensor.divided && !tensor.sequence)) return;
  CallSpec leave{.name = "leave", .rule = TypeRule::exchange};
  if (!tensor.divided) {
    leave.forward_exchanges = {over_tensor(ExchangeKind::slice, {})};
  } else {
    leave.forward_exchanges = {
        over_tensor(tensor.sequence ? ExchangeKind::sum_slice : ExchangeKind::sum, {width})};
  }
  if (tensor.sequence) {
    leave.backward_exchanges = {over_tensor(ExchangeKind::gather, {width})};
    leave.output.slice_compute = width;
    leave.gradient.compute = width;
    if (tensor.divided) leave.forward_workspace.token.compute = width;
  }
  calls.push_back(std::move(leave));
}

void add_enter_linear(std::vector<CallSpec>& calls, const std::string& name, const std::string& weight,
                      int64_t in, int64_t out, const TensorParallel& tensor, bool keeps_input) {
  add_enter(calls, in, tensor);
  const bool gathered = tensor.degree > 1 && tensor.sequence && !tensor.divided;  // a tensor of its own
  add_linear(calls, name, weight, in, out, keeps_input || gathered);
  CallSpec& linear = calls.back();
  if (!tensor.sequence || !tensor.divided) {
    if (!keeps_input && !gathered) linear.queued_input.compute = in;
    return;
  }
  linear.forward_workspace.token.compute = in;
  linear.backward_workspace.token.compute = in;
  linear.saves = linear.saves.of_slice();
  linear.weight_workspace.token.compute = in;  // of all tokens, which a queue keeps
  linear.queued.token.compute = in;
  linear.queued_saves = {};
  linear.gradient = linear.gradient.of_slice();
  linear.backward_exchanges = {over_tensor(ExchangeKind::gather, {in})};
  if (tensor.async) enter_in_slices(calls.at(calls.size() - 2), linear, in, tensor);
}

void add_leave_linear(std::vector<CallSpec>& calls, const std::string& name, const std::string& weight,
                      int64_t in, int64_t out, bool keeps_input, const TensorParallel& tensor) {
  add_linear(calls, name, weight, in, out, keeps_input);
  const bool summed = tensor.sequence && tensor.divided;
  if (summed) calls.back().output = {};  // counted where it is summed
  add_leave(calls, out, tensor);
  if (tensor.degree > 1 && tensor.sequence && !tensor.divided) {
    // The whole result is free as soon as its slice has been taken.
    calls.at(calls.size() - 2).output = {};
    calls.back().forward_workspace.token.compute = out;
  }
  if (summed && tensor.async) leave_in_slices(calls.at(calls.size() - 2), calls.back(), out, tensor);
}

void compute_on_slices(RegionSpec& region, const TensorParallel& tensor) {
  if (!tensor.sequence) return;
  for (CallSpec& call : region.calls) {
    for (Elements* elements :
         {&call.output, &call.extra, &call.saves, &call.gradient, &call.queued_saves, &call.queued_input,
          &call.forward_workspace.token, &call.backward_workspace.token, &call.weight_workspace.token,
          &call.queued.token})
      *elements = elements->of_slice();
    call.flops /= static_cast<double>(tensor.degree);
  }
}

}  // namespace stepforge
