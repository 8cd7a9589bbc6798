// SPDX-License-Identifier: Apache-2.0
#include "stepforge/fsdp/fully_shard.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/variable.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/fsdp/unit_runtime.h"
#include "stepforge/fsdp/unit_tree.h"
#include "stepforge/storage/tensor_parts.h"

namespace stepforge {

namespace {

bool contains(const std::vector<at::Tensor>& list, const at::Tensor& tensor) {
  return std::any_of(list.begin(), list.end(),
                     [&](const at::Tensor& other) { return other.is_same(tensor); });
}

DType gather_dtype(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return DType::f32;
    case at::kBFloat16:
      return DType::bf16;
    case at::kHalf:
      return DType::f16;
    default:
      throw UsageError(
          format("mixed_precision: dtype {}: must be float, bfloat16 or half", c10::toString(type)));
  }
}

/// Collects the parameters and buffers of a module that are not in a unit inside it.
class Contents {
 public:
  Contents(const torch::nn::Module& module, const std::string& unit_name, const FullyShardOptions& options,
           const std::vector<std::shared_ptr<ShardedUnit>>& other_units, c10::Device device)
      : unit_name_(unit_name), options_(options), other_units_(other_units), device_(device) {
    collect(module, "");
    std::vector<at::Tensor> sliced;
    for (const TensorSliceOf& slice : options.sliced_params) sliced.push_back(slice.parameter);
    for (const auto& [list, name] : {std::pair{&options.ignored_params, "ignored_params"},
                                     std::pair{&options.replicate_params, "replicate_params"},
                                     std::pair{&options.tied_params, "tied_params"},
                                     std::pair{&std::as_const(sliced), "sliced_params"}}) {
      for (size_t i = 0; i < list->size(); ++i) {
        if (contains(seen_, (*list)[i])) continue;
        throw UsageError(
            format("{}[{}] is not a parameter of unit \"{}\" itself; it may belong to a unit inside it", name,
                   i, unit_name_));
      }
    }
    check_stored(sliced);
  }

  /// The parameters of the unit, sharded or replicated.
  std::vector<NamedParameter> own() const {
    std::vector<NamedParameter> all = sharded;
    all.insert(all.end(), replicated.begin(), replicated.end());
    return all;
  }

  std::vector<NamedParameter> sharded;
  std::vector<NamedParameter> replicated;
  std::vector<NamedParameter> ignored;
  std::vector<std::shared_ptr<ShardedUnit>> borrowed;
  std::vector<NamedParameter> tied;
  std::vector<std::pair<std::string, at::Tensor>> buffers;

 private:
  void collect(const torch::nn::Module& module, const std::string& prefix) {
    for (const auto& parameter : module.named_parameters(/*recurse=*/false)) {
      add(prefix + parameter.key(), parameter.value());
    }
    for (const auto& buffer : module.named_buffers(/*recurse=*/false)) {
      buffers.emplace_back(prefix + buffer.key(), buffer.value());
    }
    for (const auto& child : module.named_children()) {
      if (unit_of(*child.value()) == nullptr) collect(*child.value(), prefix + child.key() + ".");
    }
  }

  void add(const std::string& name, const at::Tensor& tensor) {
    seen_.push_back(tensor);
    for (auto* list : {&sharded, &replicated, &ignored}) {
      for (NamedParameter& known : *list) {
        if (!known.tensor.is_same(tensor)) continue;
        known.aliases.push_back(name);
        return;
      }
    }
    if (is_ignored(tensor)) {
      ignored.push_back({name, tensor, {}});
      return;
    }
    for (const auto& other : other_units_) {
      if (other->owns(tensor)) return borrow(name, tensor, other);
    }
    check(name, tensor);
    (contains(options_.replicate_params, tensor) ? replicated : sharded).push_back({name, tensor, {}});
  }

  bool is_ignored(const at::Tensor& tensor) const {
    return contains(options_.ignored_params, tensor) ||
           std::any_of(other_units_.begin(), other_units_.end(), [&](const auto& unit) {
             return std::any_of(unit->ignored.begin(), unit->ignored.end(),
                                [&](const NamedParameter& own) { return own.tensor.is_same(tensor); });
           });
  }

  void borrow(const std::string& name, const at::Tensor& tensor, const std::shared_ptr<ShardedUnit>& owner) {
    if (!contains(options_.tied_params, tensor)) {
      throw UsageError(
          format("parameter {} of unit \"{}\" already belongs to unit \"{}\": declare it in "
                 "tied_params, or shard both modules as one unit",
                 name, unit_name_, owner->unit_name()));
    }
    if (std::find(borrowed.begin(), borrowed.end(), owner) == borrowed.end()) borrowed.push_back(owner);
    tied.push_back({name, tensor, {}});
  }

  void check(const std::string& name, const at::Tensor& tensor) const {
    const at::ScalarType type = tensor.scalar_type();
    if (type != at::kFloat && type != at::kBFloat16 && type != at::kHalf) {
      throw UsageError(
          format("parameter {} of unit \"{}\" has dtype {}: must be float, bfloat16 or half; "
                 "convert it, make it a buffer, or list it in ignored_params",
                 name, unit_name_, c10::toString(type)));
    }
    if (!tensor.is_cpu() && !tensor.is_meta() && tensor.device() != device_) {
      throw UsageError(format(
          "parameter {} of unit \"{}\" is on {}, and the mesh computes on {}: move the module to the CPU before "
          "fully_shard, or construct it on the meta device",
          name, unit_name_, tensor.device().str(), device_.str()));
    }
    if (!tensor.is_leaf()) {
      throw UsageError(
          format("parameter {} of unit \"{}\" is the result of a computation that autograd "
                 "recorded; detach() it",
                 name, unit_name_));
    }
  }

  /// Whether sliced_params has each tensor once, and only parameters that this unit stores.
  void check_stored(const std::vector<at::Tensor>& sliced) const {
    std::vector<at::Tensor> left;
    for (const NamedParameter& parameter : own()) left.push_back(parameter.tensor);
    for (size_t i = 0; i < sliced.size(); ++i) {
      const auto same = [&](const at::Tensor& tensor) { return tensor.is_same(sliced[i]); };
      if (std::erase_if(left, same) > 0) continue;
      throw UsageError(
          format("sliced_params[{}] of unit \"{}\" is listed twice, is in ignored_params, or belongs to "
                 "another unit, which must list it",
                 i, unit_name_));
    }
  }

  const std::string& unit_name_;
  const FullyShardOptions& options_;
  const std::vector<std::shared_ptr<ShardedUnit>>& other_units_;
  const c10::Device device_;
  std::vector<at::Tensor> seen_;
};

/// Adds a parameter group for each set of parameters that are stored in the same way.
void add_param_groups(ShardedUnit& unit, const FullyShardOptions& options, bool replicated,
                      const std::vector<NamedParameter>& parameters) {
  const MixedPrecision& precision = options.mixed_precision;
  std::map<std::pair<DType, bool>, std::vector<NamedParameter>> by_storage;
  for (const NamedParameter& parameter : parameters) {
    const DType dtype = gather_dtype(precision.param_dtype.value_or(parameter.tensor.scalar_type()));
    by_storage[{dtype, parameter.tensor.requires_grad()}].push_back(parameter);
  }
  for (const auto& [storage, members] : by_storage) {
    for (const NamedParameter& member : members) {
      if (member.tensor.is_meta()) unit.without_value.push_back(member.name);
    }
    const ParallelPlan plan{.partition = options.partition,
                            .gather = storage.first,
                            .reduce = gather_dtype(precision.reduce_dtype.value_or(at::kFloat))};
    const RankLayout& ranks = unit.mesh().layout();
    UnitSpec spec{.name = unit.unit_name(), .parameters = {}, .trainable = storage.second};
    for (const NamedParameter& member : members)
      spec.parameters.push_back(parameter_spec(member, options.sliced_params));
    const UnitLayout layout =
        replicated ? replicated_unit(ranks, plan, spec) : sharded_unit(ranks, plan, spec);
    const ComputeDevice& device = unit.mesh().device();
    const bool offloads = options.cpu_offload.enabled && !device.device.is_cpu();
    const StoreOptions store{.with_gradient = storage.second,
                             .alias_if_whole = false,
                             .compute = device,
                             .updates_on_host = offloads,
                             .pinned = offloads && options.cpu_offload.pin_memory,
                             .unit = unit.mesh().runtime().unit_count()};
    unit.add_param_group(
        std::make_unique<FsdpParamGroup>(std::move(spec), unit.mesh(), layout, store, members));
  }
}

/// The buffer keeps its identity, with the memory and the device of `value`.
void set_buffer(const at::Tensor& buffer, const at::Tensor& value) {
  if (buffer.device() == value.device()) return;
  buffer.unsafeGetTensorImpl()->set_allow_tensor_metadata_change(true);
  buffer.unsafeGetTensorImpl()->shallow_copy_from(value.getIntrusivePtr());
}

/// Moves buffers to the device, and gives values to parameters and buffers on the meta device.
void materialize(ShardedUnit& unit, const Contents& contents, const FullyShardOptions& options) {
  const c10::Device device = unit.mesh().device().device;
  std::vector<std::pair<std::string, at::Tensor>> empty_buffers;
  for (const auto& [name, buffer] : contents.buffers) {
    if (!buffer.defined()) continue;
    if (!buffer.is_meta()) {
      set_buffer(buffer, buffer.to(device));
      continue;
    }
    set_buffer(buffer, at::zeros(buffer.sizes(), buffer.options().device(device)));
    unit.without_value.push_back(name);
    empty_buffers.emplace_back(name, buffer);
  }
  if (!options.initialize) return;
  const at::NoGradGuard no_grad;
  for (const auto& group : unit.param_groups()) {
    for (size_t i = 0; i < group->parameters().size(); ++i) {
      const std::string& name = group->parameters()[i].name;
      const auto& missing = unit.without_value;
      if (std::find(missing.begin(), missing.end(), name) == missing.end()) continue;
      // The whole tensor also of a slice, so that values do not depend on the mesh.
      const ParameterSpec& parameter = group->store().spec().parameters[i];
      const at::Tensor whole = at::zeros(whole_shape(parameter), at::device(at::kCPU).dtype(at::kFloat));
      options.initialize(name, whole);
      group->set_value(i, part_of(whole, place_in_whole(parameter)));
    }
  }
  for (const auto& [name, buffer] : empty_buffers) {
    const at::Tensor whole = buffer.to(at::kCPU);
    options.initialize(name, whole);
    if (!whole.is_same(buffer)) buffer.copy_(whole);
  }
  unit.without_value.clear();
}

}  // namespace

void fully_shard(ShardedModule& module, std::shared_ptr<ShardMesh> mesh, const FullyShardOptions& options) {
  const auto impl = module.module();
  const std::string name = options.name.empty() ? impl->name() : options.name;
  if (mesh == nullptr) throw UsageError(format("unit \"{}\": fully_shard needs a mesh", name));
  if (module.is_sharded()) throw UsageError(format("unit \"{}\" is already sharded", name));
  UnitRuntime& runtime = mesh->runtime();
  const Contents contents(*impl, name, options, runtime.units(), mesh->device().device);
  if (options.mixed_precision.param_dtype) gather_dtype(*options.mixed_precision.param_dtype);
  if (options.mixed_precision.reduce_dtype) gather_dtype(*options.mixed_precision.reduce_dtype);
  check_slices(*mesh, contents.own(), options.sliced_params);

  const auto unit = std::make_shared<ShardedUnit>(name, std::move(mesh), options.mixed_precision);
  unit->behavior.reshard_after_forward = options.reshard_after_forward;
  unit->ignored = contents.ignored;
  unit->borrowed = contents.borrowed;
  unit->tied = contents.tied;
  add_param_groups(*unit, options, /*replicated=*/false, contents.sharded);
  add_param_groups(*unit, options, /*replicated=*/true, contents.replicated);
  materialize(*unit, contents, options);
  runtime.add(unit);
  impl->register_module("sharded_unit", unit);
}

}  // namespace stepforge
