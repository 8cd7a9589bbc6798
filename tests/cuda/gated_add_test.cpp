// SPDX-License-Identifier: Apache-2.0
#include "stepforge/cuda/gated_add.h"

#include "stepforge/kernels/kernel_list.h"
#include "tests/cuda/on_cpu.h"

namespace stepforge::testing {
namespace {

struct GateCase {
  at::Tensor x;
  at::Tensor y;
  at::Tensor gate;
  at::Tensor grad_out;
};

GateCase gate_case(int64_t rows, int64_t width, at::ScalarType type) {
  return {random_tensor({rows, width}, 1).to(type), random_tensor({rows, width}, 2).to(type),
          random_tensor({rows}, 3) * 3, random_tensor({rows, width}, 4).to(type)};
}

/// out, grad_y, grad_gate. `in_place`: out is x, and grad_y is grad_out.
std::vector<at::Tensor> gate_on_device(const GateCase& c, int64_t shift, bool in_place = false) {
  const int64_t rows = c.x.size(0);
  const int64_t width = c.x.size(1);
  const Guarded x(c.x, shift);
  const Guarded y(c.y, shift);
  const Guarded gate(c.gate);
  const Guarded grad_out(c.grad_out, shift);
  const Guarded new_out({rows, width}, c.x.scalar_type(), shift);
  const Guarded new_grad({rows, width}, c.x.scalar_type(), shift);
  const Guarded grad_gate({rows}, at::kFloat);
  const Guarded& out = in_place ? x : new_out;
  const Guarded& grad_y = in_place ? grad_out : new_grad;
  const DType type = dtype_of(c.x);
  cuda::gated_add_forward(type, x.data(), y.data(), gate.data<float>(), rows, width, out.data(), nullptr);
  cuda::gated_add_backward(type, grad_out.data(), y.data(), gate.data<float>(), rows, width, grad_y.data(),
                           grad_gate.data<float>(), nullptr);
  return {out.copy(), grad_y.copy(), grad_gate.copy()};
}

/// The sigmoid has 4 roundings, the rest 3; the gradient of the gate is a sum over a row.
void expect_gate(const GateCase& c, int64_t shift = 0) {
  const auto actual = in_both_orders([&] { return gate_on_device(c, shift); });
  const at::Tensor out = at::empty(c.x.sizes(), at::kDouble);
  const at::Tensor grad_y = at::empty_like(out);
  const at::Tensor grad_gate = at::empty({c.x.size(0)}, at::kDouble);
  reference::gated_add_forward(wide(c.x), wide(c.y), wide(c.gate), out);
  reference::gated_add_backward(wide(c.grad_out), wide(c.y), wide(c.gate), grad_y, grad_gate);
  const double tolerance = tolerance_of(c.x.scalar_type(), 8);
  expect_close(actual[0], out, tolerance, "out");
  expect_close(actual[1], grad_y, tolerance, "grad_y");
  expect_close(actual[2], grad_gate, 32 * kEps32, "grad_gate");
}

TEST(CudaGatedAdd, AgreesWithTheFp64Reference) {
  for (const int64_t width : kWidths) {
    for (const int64_t rows : {0, 1, 5}) {
      for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) expect_gate(gate_case(rows, width, type));
    }
  }
}

TEST(CudaGatedAdd, MemoryNeedNotBeAligned) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16})
    expect_gate(gate_case(3, 64, type), /*shift=*/1);
}

TEST(CudaGatedAdd, MoreRowsThanBlocksAreAllComputed) {
  expect_gate(gate_case(cuda::kMaxBlocks + 3, 4, at::kFloat));
}

TEST(CudaGatedAdd, MayWriteOverItsInputs) {
  const GateCase c = gate_case(5, 36, at::kFloat);
  expect_same_bits(gate_on_device(c, 0, /*in_place=*/true), gate_on_device(c, 0), " differs in place");
}

}  // namespace
}  // namespace stepforge::testing
