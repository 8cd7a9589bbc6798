// SPDX-License-Identifier: Apache-2.0
// Calls of all operations of the table of kernels (kernels/kernel_table.h), on tensors of any device.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace stepforge::gpu_check {

using Tensors = std::vector<at::Tensor>;

/// On the CPU: random values in [-2, 2] with mean 0, times `scale`, rounded to `type`; the same for the same seed.
at::Tensor random_values(at::IntArrayRef shape, uint64_t seed, double scale, at::ScalarType type);

/// Makes the tensors of a call: the same values for all devices and types.
struct Inputs {
  at::Device device = at::kCPU;
  at::ScalarType type = at::kFloat;  ///< of activations
  bool wide = false;    ///< all numbers that are fp32 or narrower are fp64, with the values that those have
  int64_t tokens = 12;  ///< at least 12
  int64_t width = 33;   ///< odd or even

  at::ScalarType activations() const { return wide ? at::kDouble : type; }
  at::ScalarType numbers() const { return wide ? at::kDouble : at::kFloat; }

  /// Activations, and numbers that are fp32 beside them.
  at::Tensor some(at::IntArrayRef shape, uint64_t seed, double scale = 1) const;
  at::Tensor fp32(at::IntArrayRef shape, uint64_t seed, double scale = 1) const;
  /// Outputs: NaN until they are written.
  at::Tensor unwritten(at::IntArrayRef shape) const;
  at::Tensor unwritten32(at::IntArrayRef shape) const;
  at::Tensor unwritten64(at::IntArrayRef shape) const;
  /// A number of a step (kernels/scalars.h).
  at::Tensor scalar(double value) const;
  /// int32: `token` times the factor, modulo the number.
  at::Tensor ints(int64_t factor, int64_t modulo) const;
};

/// Calls of some operations. Returns what they wrote.
struct KernelCase {
  std::vector<std::string> rows;  ///< the rows of the table that it calls
  bool wide = false;              ///< references take fp64
  Tensors (*run)(const Inputs& in) = nullptr;
};

/// Each row is in one of them.
std::span<const KernelCase> kernel_cases();

}  // namespace stepforge::gpu_check
