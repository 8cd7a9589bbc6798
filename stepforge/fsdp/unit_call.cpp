// SPDX-License-Identifier: Apache-2.0
#include "stepforge/fsdp/unit_call.h"

#include <functional>
#include <memory>
#include <type_traits>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include "stepforge/fsdp/sharded_unit.h"
#include "stepforge/fsdp/unit_runtime.h"

namespace stepforge {

namespace {

using torch::autograd::Node;
using torch::autograd::variable_list;

/// Passes gradients on unchanged and reports that backward has reached it.
struct BoundaryNode : Node {
  std::shared_ptr<UnitTrace> trace;
  std::size_t position = 0;
  std::vector<std::shared_ptr<ShardedUnit>> units;  ///< kept alive for backward, which needs their values

  std::string name() const override { return "ShardedUnitBoundary"; }
  variable_list apply(variable_list&& gradients) override {
    trace->reach(position);
    return std::move(gradients);
  }
};

/// Owned as libtorch owns nodes: in 2.11 by a shared pointer, in 2.15 by an intrusive one.
template <typename T>
auto new_node() {
  if constexpr (std::is_base_of_v<c10::intrusive_ptr_target, T>) {
    return c10::make_intrusive<T>();
  } else {
    return std::shared_ptr<T>(new T(), [](auto* node) { deleteNode(node); });
  }
}

/// Attaches one node to all `tensors` that require grad.
void attach_node(const TensorRefs& tensors, const std::vector<std::shared_ptr<ShardedUnit>>& units,
                 UnitTrace& trace, std::size_t position) {
  variable_list inputs;
  TensorRefs attached;
  for (at::Tensor* tensor : tensors) {
    if (!tensor->defined() || !tensor->requires_grad()) continue;
    inputs.push_back(*tensor);
    attached.push_back(tensor);
  }
  if (inputs.empty()) return;
  const auto node = new_node<BoundaryNode>();
  node->trace = trace.shared_from_this();
  node->position = position;
  node->units = units;
  node->set_next_edges(torch::autograd::collect_next_edges(inputs));
  for (at::Tensor* tensor : attached) {
    // detach() shares the version counter, so autograd still detects in-place changes of saved tensors.
    at::Tensor same = tensor->detach();
    torch::autograd::set_history(same, node);
    *tensor = std::move(same);
  }
}

void cast(const TensorRefs& tensors, at::ScalarType type) {
  for (at::Tensor* tensor : tensors) {
    if (tensor->defined() && tensor->is_floating_point()) *tensor = tensor->to(type);
  }
}

bool any_requires_grad(const TensorRefs& tensors) {
  for (const at::Tensor* tensor : tensors) {
    if (tensor->defined() && tensor->requires_grad()) return true;
  }
  return false;
}

}  // namespace

UnitCall::UnitCall(std::shared_ptr<ShardedUnit> unit) : units_(unit->borrowed) {
  unit->mesh().runtime().begin_call();
  units_.push_back(std::move(unit));
}

UnitCall::~UnitCall() {
  while (entered_ > 0) units_[--entered_]->abort_forward();
  units_.back()->mesh().runtime().end_call(!exited_);
}

void UnitCall::enter(const TensorRefs& inputs) {
  for (const auto& unit : units_) {
    unit->begin_forward();
    ++entered_;
  }
  const ShardedUnit& unit = *units_.back();
  if (unit.precision().param_dtype && unit.precision().cast_forward_inputs) {
    cast(inputs, *unit.precision().param_dtype);
  }
  if (!at::GradMode::is_enabled()) return;
  UnitTrace& trace = unit.mesh().runtime().trace();
  for (const auto& used : units_) positions_.push_back(trace.add_enter(used));
  attach_node(inputs, units_, trace, positions_.front());
}

void UnitCall::exit(const TensorRefs& outputs) {
  const ShardedUnit& unit = *units_.back();
  if (unit.precision().output_dtype) cast(outputs, *unit.precision().output_dtype);
  if (!positions_.empty()) {
    UnitTrace& trace = unit.mesh().runtime().trace();
    if (any_requires_grad(outputs)) {
      std::size_t last = 0;
      for (auto used = units_.rbegin(); used != units_.rend(); ++used) last = trace.add_exit(*used);
      attach_node(outputs, units_, trace, last - (units_.size() - 1));
    } else {
      for (const std::size_t position : positions_) trace.forget(position);
    }
  }
  while (entered_ > 0) units_[--entered_]->end_forward();
  exited_ = true;
}

}  // namespace stepforge
