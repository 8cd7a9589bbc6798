// AdamW and gradient clipping for modules under fully_shard.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stepforge/fsdp/fully_shard.h"
#include "stepforge/fsdp/unit_tree.h"

namespace stepforge {

/// The defaults of torch.optim.AdamW.
struct ShardedAdamWOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;
};

/// AdamW over this rank's parts of all parameters of units that are trained: moments are as large as the
/// parts. Each parameter's updates are counted from its first gradient on. Made after fully_shard, before
/// which it throws UsageError. Parameters that units ignore need an optimizer of their own. Neighbours with
/// the same options and counts are one pass over flat memory.
class ShardedAdamW {
 public:
  static constexpr std::array<std::string_view, 2> slot_names = {"exp_avg", "exp_avg_sq"};
  /// The options of one parameter by its name in the module.
  using Choose = std::function<ShardedAdamWOptions(const std::string& name)>;

  ShardedAdamW(const ShardedModule& module, const ShardedAdamWOptions& options);
  ShardedAdamW(const ShardedModule& module, const Choose& options);

  /// Updates every parameter that has a .grad; the rates are multiplied by `lr_factor`. Waits for reductions
  /// under way.
  void step(double lr_factor = 1.0);

  /// What is kept for parameters that are stored together, in the optimizer's own memory; zero before the
  /// first step. Those of which nothing is trained have none.
  struct State {
    const FsdpParamGroup* parameters = nullptr;
    std::array<at::Tensor, 2> slots;  ///< moments [shard_size()], flat as the shard
    at::Tensor steps;                 ///< updates made [number of parameters], int64
  };
  std::vector<State> state();
  /// In the order of fsdp_param_group().
  const std::vector<FsdpParamRef>& parameters() const { return parameters_; }

 private:
  struct Part {
    FsdpParamGroup* parameters = nullptr;
    std::vector<ShardedAdamWOptions> options;  ///< of each parameter
    at::Tensor steps;                          ///< updates made of each parameter
    std::array<at::Tensor, 2> slots;           ///< flat, as the shard
  };

  /// Whether anything had a gradient.
  static bool update(Part& part, double lr_factor);
  static void allocate_slots(Part& part);

  std::vector<FsdpParamRef> parameters_;
  std::vector<Part> parts_;
};

/// Scales the gradients of all parameters so that their norm is at most `max_norm`; returns the norm before,
/// the same bits on every rank. Each element counts once, however it is cut or copied. `norm_type`: 1, 2, 3
/// or infinity. A collective of the mesh; waits for reductions under way. Throws UsageError for another type
/// or a negative max_norm, and with `error_if_nonfinite` Error for a norm that is not finite, gradients
/// unchanged.
double clip_grad_norm(const ShardedModule& module, double max_norm, double norm_type = 2.0,
                      bool error_if_nonfinite = false);

}  // namespace stepforge
