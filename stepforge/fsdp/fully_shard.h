// SPDX-License-Identifier: Apache-2.0
// Sharded training of torch::nn modules in a custom training loop.
//
//   struct ModelImpl : torch::nn::Module {
//     ModelImpl() { register_module("first", first); register_module("second", second); }
//     at::Tensor forward(at::Tensor x) { return second(first(std::move(x))); }
//     Sharded<BlockImpl> first{64}, second{64};
//   };
//
//   Sharded<ModelImpl> model;
//   auto mesh = std::make_shared<ShardMesh>(world);
//   fully_shard(model->first, mesh);
//   fully_shard(model->second, mesh);
//   fully_shard(model, mesh);               // the rest: inner modules first, then outer ones
//   ShardedAdamW optimizer(model, {.lr = 1e-3});
//   for (...) { model(x).backward(); clip_grad_norm(model, 1.0); optimizer.step(); model.zero_grad(); }
//
// A holder is used like one of TORCH_MODULE; without fully_shard it does nothing more. All ranks call the same
// methods in the same order. The guide is docs/fully-shard.md.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "stepforge/fsdp/shard_mesh.h"
#include "stepforge/fsdp/sharded_unit.h"
#include "stepforge/fsdp/tensor_slices.h"
#include "stepforge/fsdp/tensors_in.h"
#include "stepforge/fsdp/unit_call.h"

namespace stepforge {

/// Keeps shards, gradients and optimizer state in host memory, where they are updated; gathers and reductions work on copies on
/// the mesh's device. Changes nothing if that is the CPU. Sources: `CPUOffloadPolicy` of FSDP2.
struct CpuOffload {
  bool enabled = false;
  bool pin_memory = true;  ///< so that copies overlap with computation
};

struct FullyShardOptions {
  std::string name = {};  ///< of the unit in messages; empty: the module's type
  bool reshard_after_forward = true;
  MixedPrecision mixed_precision = {};
  Partition partition = {};
  CpuOffload cpu_offload = {};
  /// Parameters of the module that stay ordinary: not sharded, gathered or reduced.
  std::vector<at::Tensor> ignored_params = {};
  /// Parameters that are not sharded; their gradients are summed over shards and replicas.
  std::vector<at::Tensor> replicate_params = {};
  /// Parameters of units outside this module that its forward uses too.
  std::vector<at::Tensor> tied_params = {};
  /// Parameters of this unit that are slices of larger tensors, which the ranks of tensor parallelism hold
  /// together. The others are the same on all these ranks, and so must their gradients be: the module sums
  /// gradients of which each rank computes a part (fsdp/tensor_sums.h).
  std::vector<TensorSliceOf> sliced_params = {};
  /// Fills parameters and buffers on the meta device: called once for each, in the same order on all ranks,
  /// with the name relative to the module and a whole tensor to fill (fp32; for a buffer its own dtype). For
  /// sliced_params too it fills the whole tensor, and each rank keeps its slice.
  std::function<void(const std::string& name, at::Tensor value)> initialize = {};
};

/// The handle of an unshard() under way.
class UnshardHandle {
 public:
  explicit UnshardHandle(std::shared_ptr<ShardedUnit> unit) : unit_(std::move(unit)) {}
  /// Returns when the parameters have their values.
  void wait() { unit_->unshard(/*wait=*/true); }

 private:
  std::shared_ptr<ShardedUnit> unit_;
};

/// The methods of a sharded module, whatever its type. All except is_sharded(), parameters() and
/// named_parameters() throw UsageError before fully_shard. With `recurse` they also apply to the units
/// inside.
class ShardedModule {
 public:
  using List = std::vector<std::reference_wrapper<const ShardedModule>>;

  ShardedModule() = default;
  virtual ~ShardedModule() = default;
  ShardedModule(const ShardedModule&) = default;
  ShardedModule& operator=(const ShardedModule&) = default;
  ShardedModule(ShardedModule&&) = default;
  ShardedModule& operator=(ShardedModule&&) = default;

  bool is_sharded() const { return find_unit() != nullptr; }
  std::shared_ptr<ShardedUnit> unit() const;

  /// Gathers this unit's parameters unless they are gathered. With `async` it returns immediately; the
  /// module's call or wait() waits.
  UnshardHandle unshard(bool async = false) const;
  /// Frees the gathered values unless a running call uses them.
  void reshard() const;

  /// false: backward leaves gradients whole and unreduced, and the next backward adds to them.
  void set_requires_gradient_sync(bool wanted, bool recurse = true) const;
  /// false: gradients are summed over shards only; the next reduction with true also sums over replicas.
  void set_requires_all_reduce(bool wanted, bool recurse = true) const;
  void set_reshard_after_forward(bool wanted, bool recurse = true) const;
  /// false: values stay gathered for the next forward unless the masters change.
  void set_reshard_after_backward(bool wanted, bool recurse = true) const;
  /// false: backward returns while reductions are under way; .grad is set after wait_for_reductions().
  void set_is_last_backward(bool last, bool recurse = true) const;
  /// avg (the default) divides by the number of ranks that read different rows, ShardMesh::ranks().
  void set_reduce_op(ReduceOp op, bool recurse = false) const;
  /// Multiplies reduced gradients by `factor` (nullopt: 1) before they are added to .grad. Throws UsageError
  /// if it is not finite.
  void set_gradient_scaling_factor(std::optional<double> factor, bool recurse = false) const;
  /// Units whose gathers start when this one's forward begins.
  void set_modules_to_forward_prefetch(const List& modules) const;
  /// Units whose gathers start when this one's backward begins; without a list, the next unit.
  void set_modules_to_backward_prefetch(const List& modules) const;

  /// Drops all gradients of this module, including those not yet reduced. After an exception in backward,
  /// also frees the values that are still gathered.
  void zero_grad() const;
  /// Waits for all reductions of the mesh; then the .grad of every local parameter is set.
  void wait_for_reductions() const;

  /// The tensors for an optimizer of torch::optim: this rank's shards of all parameters (fp32 leaves; empty
  /// where the rank holds nothing), and the ignored parameters. Without fully_shard the module's parameters.
  std::vector<at::Tensor> parameters() const;
  std::vector<std::pair<std::string, at::Tensor>> named_parameters() const;

  virtual std::shared_ptr<torch::nn::Module> module() const = 0;

 protected:
  /// Null before fully_shard.
  std::shared_ptr<ShardedUnit> find_unit() const;

 private:
  void for_each_unit(bool recurse, const std::function<void(ShardedUnit&)>& visit) const;

  mutable std::shared_ptr<ShardedUnit> unit_;
};

/// Makes a unit of all parameters of `module` that no unit inside it owns. A collective of the mesh. Values
/// must be the same on all ranks, those of sliced_params on all ranks with the same place in tensor
/// parallelism; each rank keeps its shard. Throws UsageError, before anything is changed, if
/// - the module is already sharded;
/// - another unit owns a parameter that is not in tied_params;
/// - a list of the options has a tensor that is not a parameter of the module;
/// - slices in sliced_params lie outside their tensors, overlap or do not cover them, or are parameters of
///   another unit;
/// - a parameter is neither on the CPU nor on the meta device, or not of type float, bfloat16 or half.
void fully_shard(ShardedModule& module, std::shared_ptr<ShardMesh> mesh,
                 const FullyShardOptions& options = {});

/// A holder like one of TORCH_MODULE. Calling it gathers the unit, runs the module's forward and frees the
/// gathered values. Arguments and results may be tensors, std containers of them, or structs that satisfy
/// VisitsTensors; other arguments are passed on unchanged.
template <typename Impl>
class Sharded : public torch::nn::ModuleHolder<Impl>, public ShardedModule {
 public:
  using torch::nn::ModuleHolder<Impl>::ModuleHolder;

  template <typename... Args>
  auto operator()(Args&&... args) const {
    using Result = std::decay_t<decltype(this->impl_->forward(std::forward<Args>(args)...))>;
    static_assert(holds_tensors<Result>,
                  "forward must return tensors, std containers of them, or a struct with a "
                  "member visit_tensors");
    const std::shared_ptr<ShardedUnit> unit = find_unit();
    if (unit == nullptr) return Result(this->impl_->forward(std::forward<Args>(args)...));
    UnitCall call(unit);
    std::tuple<Argument<Args>...> inputs(std::forward<Args>(args)...);
    call.enter(tensors_in(inputs));
    Result result = std::apply(
        [this](auto&... input) {
          return Result(this->impl_->forward(static_cast<Argument<Args>&&>(input)...));
        },
        inputs);
    call.exit(tensors_in(result));
    return result;
  }

  std::shared_ptr<torch::nn::Module> module() const override { return this->ptr(); }

 private:
  /// Arguments that hold tensors are copied (the handles, not the values), so that the tensors can be
  /// replaced.
  template <typename T>
  using Argument = std::conditional_t<holds_tensors<T>, std::decay_t<T>, T&&>;

  template <typename T>
  static TensorRefs tensors_in(T& value) {
    TensorRefs tensors;
    visit_tensors(value, [&](at::Tensor& tensor) { tensors.push_back(&tensor); });
    return tensors;
  }
};

}  // namespace stepforge
