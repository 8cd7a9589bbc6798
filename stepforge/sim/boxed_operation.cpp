// SPDX-License-Identifier: Apache-2.0
#include "stepforge/sim/boxed_operation.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/sim/guard.h"
#include "stepforge/sim/machine.h"

namespace stepforge::sim {

TensorPlace::TensorPlace(const at::Tensor& tensor)
    : address(tensor.unsafeGetTensorImpl()->unsafe_storage() && tensor.numel() > 0
                  ? static_cast<std::byte*>(const_cast<void*>(tensor.storage().data())) +
                        tensor.storage_offset() * static_cast<int64_t>(tensor.element_size())
                  : nullptr),
      sizes(tensor.sizes().vec()),
      strides(tensor.strides().vec()),
      type(tensor.scalar_type()),
      wrapped_number(tensor.unsafeGetTensorImpl()->is_wrapped_number()) {}

Range TensorPlace::range() const {
  int64_t last = 0;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 0) return {};
    last += (sizes[d] - 1) * strides[d];
  }
  return {static_cast<const std::byte*>(address), (last + 1) * static_cast<int64_t>(c10::elementSize(type))};
}

at::Tensor TensorPlace::for_streams() const {
  void* const begin = address == nullptr ? nullptr : Machine::get().for_streams(address);
  at::Tensor tensor = at::from_blob(begin, sizes, strides, at::device(at::kCPU).dtype(type));
  if (wrapped_number) tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

namespace {

using torch::jit::Stack;

bool on_device(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == kType;
}

at::Tensor number_on_host(const at::Tensor& number) {
  at::Tensor copy = number.detach().clone();
  if (number.unsafeGetTensorImpl()->is_wrapped_number()) copy.unsafeGetTensorImpl()->set_wrapped_number(true);
  return copy;
}

/// Applies `change` to each tensor of an argument.
template <typename Change>
c10::IValue with_tensors(const c10::IValue& value, const Change& change) {
  if (value.isTensor()) return value.toTensor().defined() ? change(value.toTensor()) : value;
  if (value.isTensorList()) {
    c10::List<at::Tensor> changed;
    for (const at::Tensor& tensor : value.toTensorVector()) changed.push_back(change(tensor));
    return changed;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> changed;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector())
      changed.push_back(tensor && tensor->defined() ? std::optional(change(*tensor)) : std::nullopt);
    return changed;
  }
  return value;
}

at::Tensor meta_of(const at::Tensor& tensor) {
  at::Tensor meta = at::empty_strided(tensor.sizes(), tensor.strides(),
                                      tensor.options().device(at::kMeta).pinned_memory(false));
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) meta.unsafeGetTensorImpl()->set_wrapped_number(true);
  return meta;
}

at::Tensor zeros_of(const at::Tensor& tensor) {
  return on_device(tensor) ? at::zeros(tensor.sizes(), tensor.options().device(at::kCPU)) : tensor;
}

/// An argument as enqueued work keeps it: tensors of the device by their places.
struct KeptArgument {
  c10::IValue value;                ///< with an undefined tensor for each of the device
  std::vector<TensorPlace> places;  ///< of these, in order

  KeptArgument(const c10::IValue& given, const std::string& operation) {
    value = with_tensors(given, [&](const at::Tensor& tensor) {
      if (!on_device(tensor)) {
        if (tensor.dim() == 0) return number_on_host(tensor);
        throw Error(format("{}: a tensor of shape {} is on {}, the others are on a simulated device",
                           operation, shape_text(tensor.sizes().vec()), tensor.device().str()));
      }
      places.emplace_back(tensor);
      return at::Tensor();
    });
  }

  c10::IValue for_streams() const {
    if (places.empty()) return value;
    size_t next = 0;
    if (value.isTensor()) return places[next].for_streams();
    if (value.isTensorList()) {
      c10::List<at::Tensor> tensors;
      for (const at::Tensor& tensor : value.toTensorVector())
        tensors.push_back(tensor.defined() ? tensor : places[next++].for_streams());
      return tensors;
    }
    c10::List<std::optional<at::Tensor>> tensors;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
      if (!tensor || tensor->defined()) {
        tensors.push_back(tensor);
      } else {
        tensors.push_back(places[next++].for_streams());
      }
    }
    return tensors;
  }
};

/// The device of the tensors, or else that of an argument `device`.
c10::Device device_of(const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> arguments) {
  std::optional<c10::Device> found;
  for (const c10::IValue& argument : arguments)
    with_tensors(argument, [&](const at::Tensor& tensor) {
      if (on_device(tensor) && !found) found = tensor.device();
      return tensor;
    });
  for (const c10::IValue& argument : arguments)
    if (!found && argument.isDevice() && argument.toDevice().type() == kType) found = argument.toDevice();
  if (!found) throw Error(format("{} names no simulated device", schema.name()));
  return {kType,
          found->has_index() ? found->index() : c10::impl::VirtualGuardImpl(kType).getDevice().index()};
}

bool writes(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

/// The argument that a result is, or -1.
int aliased_argument(const c10::FunctionSchema& schema, const c10::Argument& result) {
  if (result.alias_info() == nullptr) return -1;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    if (writes(argument) && argument.alias_info()->beforeSets() == result.alias_info()->beforeSets())
      return static_cast<int>(i);
  }
  throw Error(format("{} returns a view, and simulated devices have no kernel for it", schema.name()));
}

/// Operations without a Meta kernel in C++ whose results have shapes that do not depend on data.
constexpr std::string_view kShapesByTrial[] = {"aten::where", "aten::index_select"};

/// A call, whose work is enqueued when its results exist.
struct Call {
  const c10::OperatorHandle& operation;
  std::string name;
  c10::Device device;
  std::vector<c10::IValue> arguments;
  std::vector<KeptArgument> kept;
  std::vector<c10::IValue> results;
  std::vector<std::pair<size_t, std::vector<TensorPlace>>> made;  ///< results that are new tensors

  Call(const c10::OperatorHandle& called, c10::ArrayRef<c10::IValue> given)
      : operation(called),
        name(called.schema().name()),
        device(device_of(called.schema(), given)),
        arguments(given.begin(), given.end()) {
    for (const c10::IValue& argument : arguments) kept.emplace_back(argument, name);
  }

  /// Results with the right shapes, or none if only data tell them. Outputs that are given get their shape.
  std::optional<Stack> shapes() {
    try {
      return shapes_of(meta_of, c10::Device(at::kMeta));
    } catch (const c10::NotImplementedError&) {
      const c10::FunctionSchema& schema = operation.schema();
      const bool fills_outputs = schema.overload_name().find("out") != std::string::npos;
      const bool makes_results = std::ranges::any_of(
          schema.returns(), [](const c10::Argument& result) { return result.alias_info() == nullptr; });
      if (!makes_results && !fills_outputs) return Stack(schema.returns().size());
      if (!fills_outputs && std::ranges::find(kShapesByTrial, name) == std::end(kShapesByTrial))
        return std::nullopt;
      return shapes_of(zeros_of, c10::Device(at::kCPU));
    }
  }

  /// From another device's kernel, run on tensors that stand for those of this one.
  template <typename StandIn>
  Stack shapes_of(const StandIn& stand_in, c10::Device other) {
    Stack stack;
    for (const c10::IValue& argument : arguments)
      stack.push_back(argument.isDevice() ? c10::IValue(other) : with_tensors(argument, stand_in));
    const Stack given = stack;
    operation.callBoxed(&stack);
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (!writes(operation.schema().arguments()[i]) || !arguments[i].isTensor()) continue;
      const at::Tensor& tensor = arguments[i].toTensor();
      if (tensor.sizes() == given[i].toTensor().sizes()) continue;
      tensor.resize_(given[i].toTensor().sizes());
      kept[i] = KeptArgument(arguments[i], name);
    }
    return stack;
  }

  void add_results(const Stack& shaped) {
    const auto& returns = operation.schema().returns();
    for (size_t i = 0; i < returns.size(); ++i) {
      if (const int argument = aliased_argument(operation.schema(), returns[i]); argument >= 0) {
        results.push_back(arguments[static_cast<size_t>(argument)]);
        continue;
      }
      std::vector<TensorPlace> places;
      results.push_back(with_tensors(shaped.at(i), [&](const at::Tensor& shape) {
        const at::Tensor tensor =
            at::empty_strided(shape.sizes(), shape.strides(), shape.options().device(device));
        places.emplace_back(tensor);
        return tensor;
      }));
      made.emplace_back(i, std::move(places));
    }
  }

  void enqueue() {
    Task task{.name = name, .reads = {}, .writes = {}, .run = {}};
    for (size_t i = 0; i < kept.size(); ++i)
      for (const TensorPlace& place : kept[i].places)
        (writes(operation.schema().arguments()[i]) ? task.writes : task.reads).push_back(place.range());
    for (const auto& [result, places] : made)
      for (const TensorPlace& place : places) task.writes.push_back(place.range());
    task.run = [operation = operation, kept = std::move(kept), made = std::move(made)] {
      Stack stack;
      for (const KeptArgument& argument : kept)
        stack.push_back(argument.value.isDevice() ? c10::IValue(c10::Device(at::kCPU))
                                                  : argument.for_streams());
      try {
        operation.callBoxed(&stack);
      } catch (const std::exception& failure) {
        throw Error(format("{}: {}", operation.schema().name(), failure.what()));
      }
      for (const auto& [result, places] : made) {
        size_t next = 0;
        with_tensors(stack.at(result), [&](const at::Tensor& computed) {
          return places[next++].for_streams().copy_(computed);
        });
      }
    };
    Machine::get().enqueue(current_stream(device.index()), std::move(task));
  }

  /// For results whose sizes depend on data.
  void run_on_host() {
    Machine& machine = Machine::get();
    machine.count_host_operation(device.index(), name);
    machine.synchronize_stream(current_stream(device.index()));
    Stack stack;
    for (const KeptArgument& argument : kept) stack.push_back(argument.for_streams());
    operation.callBoxed(&stack);
    for (const c10::IValue& result : stack)
      results.push_back(
          with_tensors(result, [&](const at::Tensor& computed) { return computed.to(device); }));
  }
};

}  // namespace

void run_boxed(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard below_autograd(c10::autograd_dispatch_keyset);
  const size_t count = operation.schema().arguments().size();
  Call call(operation, torch::jit::last(*stack, count));
  if (const std::optional<Stack> shaped = call.shapes()) {
    call.add_results(*shaped);
    call.enqueue();
  } else {
    call.run_on_host();
  }
  torch::jit::drop(*stack, count);
  for (c10::IValue& result : call.results) stack->push_back(std::move(result));
}

}  // namespace stepforge::sim
