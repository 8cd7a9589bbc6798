// AdamW over flat buffers: one pass per unit and interval, gradient clipping folded in, fp32 masters and
// moments.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stepforge/optim/param_groups.h"
#include "stepforge/storage/unit_store.h"

namespace stepforge {

/// The moments of every trained unit and the number of updates made.
class AdamW {
 public:
  /// Slot names as in checkpoints: "optim.state.<parameter>.exp_avg".
  static constexpr std::array<std::string_view, 2> slot_names = {"exp_avg", "exp_avg_sq"};

  AdamW(ModelStore& store, ParamGroups groups, double eps);

  /// Starts update number steps() + 1 with every group's rate multiplied by `lr_factor` and gradients by
  /// `grad_scale`.
  void begin_update(double lr_factor, double grad_scale);
  /// Updates unit `unit` in one pass. Between begin_update and end_update, once per trained unit.
  void update(int unit);
  void end_update() { ++steps_; }

  /// Of an offloaded unit: `buffer` [2 * shard_size()] fp32 becomes the copy of its slots that update() works
  /// on, until offload() has copied it back.
  void reload(int unit, const at::Tensor& buffer);
  void offload(int unit);

  int64_t steps() const { return steps_; }
  void set_steps(int64_t steps) { steps_ = steps; }
  const ParamGroups& groups() const { return groups_; }
  /// Flat fp32 slot of a unit, of its shard's size; undefined for a frozen unit.
  const at::Tensor& slot(size_t unit, size_t slot) const { return slots_.at(unit).at(slot); }

 private:
  ModelStore& store_;
  ParamGroups groups_;
  double eps_;
  int64_t steps_ = 0;
  double lr_factor_ = 1.0;
  double grad_scale_ = 1.0;
  std::vector<std::array<at::Tensor, 2>> slots_;
  std::vector<std::array<at::Tensor, 2>> working_slots_;  ///< of an offloaded unit: those on the device
};

}  // namespace stepforge
