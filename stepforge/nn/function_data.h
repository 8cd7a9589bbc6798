// SPDX-License-Identifier: Apache-2.0
// Lets the forward() of an autograd function save C++ values for its backward().
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

namespace stepforge {

/// The object must outlive the graph. Parameters, rope tables and batches do: they belong to the executor.
template <typename T>
void save_pointer(torch::autograd::AutogradContext& ctx, const char* name, const T* pointer) {
  ctx.saved_data[name] = static_cast<int64_t>(reinterpret_cast<intptr_t>(pointer));
}

template <typename T>
T* saved_pointer(const torch::autograd::AutogradContext& ctx, const char* name) {
  const auto address = static_cast<intptr_t>(ctx.saved_data.at(name).toInt());
  return reinterpret_cast<T*>(address);  // NOLINT(performance-no-int-to-ptr): save_pointer() made it
}

template <typename T>
struct Capsule : torch::CustomClassHolder {
  explicit Capsule(T saved) : value(std::move(saved)) {}
  T value;
};

/// The value lives as long as the graph.
template <typename T>
void save_value(torch::autograd::AutogradContext& ctx, const char* name, T value) {
  ctx.saved_data[name] = c10::IValue::make_capsule(c10::make_intrusive<Capsule<T>>(std::move(value)));
}

template <typename T>
T& saved_value(const torch::autograd::AutogradContext& ctx, const char* name) {
  return static_cast<Capsule<T>*>(ctx.saved_data.at(name).toCapsule().get())->value;
}

}  // namespace stepforge
