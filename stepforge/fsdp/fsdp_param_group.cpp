// SPDX-License-Identifier: Apache-2.0
#include "stepforge/fsdp/fsdp_param_group.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/storage/tensor_parts.h"

namespace stepforge {

namespace {

/// A tensor without memory; using it throws `message`.
at::Tensor unusable(const std::string& message, c10::Device device) {
  at::Tensor tensor = at::empty({1}, at::device(device).dtype(at::kFloat));
  // libtorch compares shapes with the storage's size before it asks for the memory.
  tensor.storage().set_nbytes(static_cast<size_t>(std::numeric_limits<int64_t>::max()));
  tensor.storage().unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(message);
  return tensor;
}

}  // namespace

FsdpParamGroup::FsdpParamGroup(UnitSpec spec, ShardMesh& mesh, const UnitLayout& layout,
                               const StoreOptions& options, std::vector<NamedParameter> parameters)
    : spec_(std::move(spec)),
      mesh_(mesh),
      parameters_(std::move(parameters)),
      store_(std::make_unique<UnitStore>(spec_, layout, options, mesh.groups())),
      hidden_(unusable(
          format(
              "a parameter of unit \"{}\" is used but not gathered: call the module through its holder, or "
              "unshard() it before",
              spec_.name),
          store_->device())) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& tensor = parameters_[i].tensor;
    if (!tensor.is_meta()) set_value(i, tensor);
    const ShardRange held = store_->local_range(i, i + 1);
    const std::vector<ShardSlice> slices = store_->slices(i);
    at::Tensor local = store_->master().narrow(0, held.begin, held.size());
    if (slices.size() == 1) local = local.view(slices[0].slice.sizes);
    // A leaf with its own version counter: its updates make gathered values stale.
    locals_.push_back(local.variable_data().set_requires_grad(tensor.requires_grad()));
    // The module's tensor keeps its identity: names, handles and requires_grad stay as they are.
    tensor.mutable_grad() = at::Tensor();
    tensor.unsafeGetTensorImpl()->set_allow_tensor_metadata_change(true);
    tensor.unsafeGetTensorImpl()->shallow_copy_from(store_->parameter(i).value().getIntrusivePtr());
  }
  hide_values();
}

FsdpParamGroup::~FsdpParamGroup() {
  // Running tasks use the masters and gradients.
  gathering_.wait_noexcept();
  reducing_.wait_noexcept();
}

bool FsdpParamGroup::any_trained() const {
  return std::any_of(parameters_.begin(), parameters_.end(),
                     [](const NamedParameter& parameter) { return parameter.tensor.requires_grad(); });
}

int64_t FsdpParamGroup::masters_version() const {
  // State dicts write to the flat masters, optimizers to the locals.
  int64_t version = changes_ + static_cast<int64_t>(store_->master()._version());
  for (const at::Tensor& local : locals_) version += static_cast<int64_t>(local._version());
  return version;
}

void FsdpParamGroup::start_gather() {
  if ((gathered() || filling_.defined()) && gathered_version_ == masters_version()) return;
  release();
  filling_ = at::empty({store_->gathered_size()},
                       at::device(store_->device()).dtype(scalar_type(store_->layout().gather)));
  gathered_version_ = masters_version();
  gathering_ = mesh_.gather_lane().submit([store = store_.get(), slot = filling_] { store->fill(slot); });
}

void FsdpParamGroup::finish_gather() {
  start_gather();
  if (!filling_.defined()) return;
  at::Tensor slot = std::exchange(filling_, {});
  gathering_.wait();
  store_->bind_values(std::move(slot));
  show_values();
}

void FsdpParamGroup::wait_for_gather() {
  wait(gathering_);
}

void FsdpParamGroup::wait(LaneTask& task) const {
  if (store_->rests_on_host()) {
    task.wait_on_host();
  } else {
    task.wait();
  }
}

void FsdpParamGroup::release() {
  gathering_.wait();
  filling_ = at::Tensor();
  if (!gathered()) return;
  store_->release();
  hide_values();
}

void FsdpParamGroup::show_values() {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    parameters_[i].tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(
        store_->parameter(i).value().storage());
  }
}

void FsdpParamGroup::hide_values() {
  // Views saved by a graph share the storage of the values, which has no memory either.
  for (const NamedParameter& parameter : parameters_) {
    parameter.tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(hidden_.storage());
  }
}

void FsdpParamGroup::start_gradient() {
  if (!any_trained()) return;
  const at::NoGradGuard no_grad;
  store_->allow_gradient();
  const bool first = !written_.defined();
  if (first) {
    written_ = at::zeros({store_->gathered_size()}, at::device(store_->device()).dtype(at::kFloat));
    store_->start_gradient(written_);
  }
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (!trained(i)) continue;
    at::Tensor& grad = parameters_[i].tensor.mutable_grad();
    const at::Tensor& view = store_->parameter(i).gradient();
    if (grad.is_same(view)) continue;
    // The user has set another gradient or dropped it since the last micro-step.
    if (!first && !grad.defined()) view.zero_();
    if (grad.defined()) view.copy_(grad);
    grad = view;
  }
}

bool FsdpParamGroup::keep_earlier_gradients() {
  const auto has_gradient = [](const at::Tensor& local) { return local.grad().defined(); };
  if (std::none_of(locals_.begin(), locals_.end(), has_gradient)) return false;
  for (size_t i = 0; i < locals_.size(); ++i) {
    const ShardRange held = store_->local_range(i, i + 1);
    const at::Tensor region = store_->gradient().narrow(0, held.begin, held.size());
    const at::Tensor& grad = locals_[i].grad();
    if (!grad.defined()) {
      region.zero_();
    } else if (grad.data_ptr() != region.data_ptr()) {
      region.copy_(grad.reshape({-1}));
    }
  }
  return true;
}

void FsdpParamGroup::start_reduction(const ReduceRule& rule) {
  finish_reduction();
  if (!any_trained()) return;
  const at::NoGradGuard no_grad;
  start_gradient();
  for (const NamedParameter& parameter : parameters_) parameter.tensor.mutable_grad() = at::Tensor();
  store_->end_reduction();
  const bool over_replicas = store_->replicas() > 1;
  const bool postponed = over_replicas && !rule.all_reduce;
  const bool accumulate = !postponed && keep_earlier_gradients();
  std::vector<bool> trained_now(parameters_.size());
  for (size_t i = 0; i < trained_now.size(); ++i) trained_now[i] = trained(i);
  reducing_ =
      mesh_.reduce_lane().submit([this, rule, parts = TrainedParts(store_->shards(), trained_now), accumulate,
                                  postponed, over_replicas, left = std::exchange(written_, {})]() mutable {
        const at::NoGradGuard no_grad_here;
        const at::Tensor written = std::exchange(left, {});  // freed when the task ends
        use_on_current_stream(written);
        // In fp16 an unscaled sum could overflow.
        const bool scaled_before = store_->layout().reduce == DType::f16;
        if (scaled_before) written.mul_(rule.factor);
        at::Tensor sum = store_->reduced(written, parts);
        if (partial_.defined()) sum.add_(std::exchange(partial_, {}));
        if (postponed) {
          partial_ = sum;
          return;
        }
        if (over_replicas) store_->all_reduce(sum, parts);
        if (!scaled_before && rule.factor != 1.0) sum.mul_(rule.factor);
        take_sum(sum, accumulate);
      });
}

void FsdpParamGroup::take_sum(const at::Tensor& sum, bool accumulate) {
  if (!accumulate) {
    store_->gradient().copy_(sum, /*non_blocking=*/true);
  } else if (store_->rests_on_host()) {
    arriving_ = at::empty(sum.sizes(), store_->resting_options(sum.scalar_type()));
    arriving_.copy_(sum, /*non_blocking=*/true);
  } else {
    store_->gradient().add_(sum);
  }
}

void FsdpParamGroup::finish_reduction() {
  if (!reducing_) return;
  wait(reducing_);
  if (partial_.defined()) return;
  if (arriving_.defined()) {
    const at::NoGradGuard no_grad;
    store_->gradient().add_(std::exchange(arriving_, {}));
  }
  for (size_t i = 0; i < locals_.size(); ++i) {
    if (!trained(i)) continue;
    const ShardRange held = store_->local_range(i, i + 1);
    locals_[i].set_requires_grad(true);
    locals_[i].mutable_grad() =
        store_->gradient().narrow(0, held.begin, held.size()).view(locals_[i].sizes());
  }
}

const at::Tensor& FsdpParamGroup::gradient() {
  keep_earlier_gradients();
  return store_->gradient();
}

void FsdpParamGroup::zero_grad() {
  finish_reduction();
  partial_ = at::Tensor();
  if (written_.defined()) store_->end_reduction();
  written_ = at::Tensor();
  for (size_t i = 0; i < locals_.size(); ++i) {
    locals_[i].mutable_grad() = at::Tensor();
    parameters_[i].tensor.mutable_grad() = at::Tensor();
  }
}

void FsdpParamGroup::set_value(size_t index, const at::Tensor& value) {
  const at::NoGradGuard no_grad;
  const std::vector<int64_t>& shape = spec_.parameters.at(index).shape;
  if (value.sizes() != at::IntArrayRef(shape)) {
    throw UsageError(format("parameter {} of unit \"{}\" has shape {}, but its value has shape {}",
                            spec_.parameters[index].name, spec_.name, shape_text(shape),
                            shape_text(value.sizes().vec())));
  }
  for (const ShardSlice& held : store_->slices(index)) {
    part_of(store_->master(), held).copy_(part_of(value.detach(), held.slice));
  }
  masters_changed();
}

}  // namespace stepforge
