// SPDX-License-Identifier: Apache-2.0
// The operations of the executor that pass values to other ranks.
#include <array>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include "stepforge/storage/tensor_parts.h"
#include "stepforge/train/executor.h"

namespace stepforge {

void Executor::send(const Operation& operation, BufferKind kind, const std::vector<int>& values) {
  for (const int value : values) {
    const at::Tensor& tensor = read(operation, kind, value).tensor;
    communicator(operation)->send(bytes_of(tensor.contiguous()), other_end(operation));
  }
}

void Executor::receive(const Operation& operation, BufferKind kind, const std::vector<int>& values) {
  for (const int index : values) {
    const ProgramValue& value = program_.values.at(static_cast<size_t>(index));
    const int64_t rows =
        program_.kind == ProgramKind::train
            ? value.rows
            : read(operation, BufferKind::batch).batches.at(0).batch.tokens.numel() / value.slices;
    at::Tensor& received = allocate(operation, kind, index).tensor;
    received = at::empty({rows, value.width}, at::device(store_.device()).dtype(scalar_type(value.dtype)));
    communicator(operation)->receive(bytes_of(received), other_end(operation));
  }
}

void Executor::dispatch(const Operation& operation) {
  const at::NoGradGuard no_grad;
  const ProgramBlock& experts = program_block(operation);
  const auto sent = [&](size_t i) { return read(operation, BufferKind::bundle, experts.sent.at(i)).tensor; };
  DispatchedRows came = dispatch_tokens(
      experts.method, {sent(0), sent(1), sent(2), experts.experts, experts.parts}, *communicator(operation));
  const std::array<at::Tensor, 3> made = {came.rows, came.weights, came.experts};
  for (size_t i = 0; i < made.size(); ++i)
    allocate(operation, BufferKind::bundle, experts.inputs.at(i)).tensor = made.at(i);
  allocate(operation, BufferKind::routes).routes = std::move(came.routes);
}

void Executor::combine(const Operation& operation) {
  const at::NoGradGuard no_grad;
  const ProgramBlock& experts = program_block(operation);
  allocate(operation, BufferKind::bundle, experts.returned.at(0)).tensor =
      read(operation, BufferKind::routes)
          .routes->combine(read(operation, BufferKind::bundle, experts.outputs.at(0)).tensor,
                           *communicator(operation));
}

void Executor::send_result_gradients(const Operation& operation) {
  const at::NoGradGuard no_grad;
  const ProgramBlock& experts = program_block(operation);
  allocate(operation, BufferKind::bundle_gradient, experts.outputs.at(0)).tensor =
      read(operation, BufferKind::routes)
          .routes->combine_gradient(
              read(operation, BufferKind::bundle_gradient, experts.returned.at(0)).tensor,
              *communicator(operation));
}

void Executor::return_row_gradients(const Operation& operation) {
  const at::NoGradGuard no_grad;
  const ProgramBlock& experts = program_block(operation);
  const auto of_input = [&](size_t i) {
    return read(operation, BufferKind::bundle_gradient, experts.inputs.at(i)).tensor;
  };
  TokenGradients made = read(operation, BufferKind::routes)
                            .routes->dispatch_gradient(of_input(0), of_input(1), *communicator(operation));
  add_gradients(operation, experts.sent, {std::move(made.tokens), std::move(made.weights), at::Tensor()});
}

}  // namespace stepforge
