// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include "stepforge/app/torch/gpu_check/kernel_cases.h"
#include "stepforge/base/random.h"

namespace stepforge::gpu_check {

namespace {

at::Tensor nans(at::IntArrayRef shape, at::Device device, at::ScalarType type) {
  return at::full(shape, std::numeric_limits<double>::quiet_NaN(), at::device(device).dtype(type));
}

}  // namespace

at::Tensor random_values(at::IntArrayRef shape, uint64_t seed, double scale, at::ScalarType type) {
  const at::Tensor tensor = at::empty(shape, at::device(at::kCPU).dtype(at::kFloat));
  auto* numbers = tensor.mutable_data_ptr<float>();
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    const auto words = philox(seed, static_cast<uint64_t>(i));
    numbers[i] = uniform_float(words[0]) + uniform_float(words[1]) + uniform_float(words[2]) +
                 uniform_float(words[3]) - 2.0F;
  }
  return tensor.mul_(scale).to(type);
}

at::Tensor Inputs::some(at::IntArrayRef shape, uint64_t seed, double scale) const {
  return random_values(shape, seed, scale, type).to(activations()).to(device);
}
at::Tensor Inputs::fp32(at::IntArrayRef shape, uint64_t seed, double scale) const {
  return random_values(shape, seed, scale, at::kFloat).to(numbers()).to(device);
}
at::Tensor Inputs::unwritten(at::IntArrayRef shape) const {
  return nans(shape, device, activations());
}
at::Tensor Inputs::unwritten32(at::IntArrayRef shape) const {
  return nans(shape, device, numbers());
}
at::Tensor Inputs::unwritten64(at::IntArrayRef shape) const {
  return nans(shape, device, at::kDouble);
}
at::Tensor Inputs::scalar(double value) const {
  return at::full({}, value, at::device(device).dtype(at::kDouble));
}
at::Tensor Inputs::ints(int64_t factor, int64_t modulo) const {
  const at::Tensor numbers = at::arange(tokens, at::device(at::kCPU).dtype(at::kLong));
  return numbers.mul(factor).remainder(modulo).to(at::kInt).to(device);
}

}  // namespace stepforge::gpu_check
