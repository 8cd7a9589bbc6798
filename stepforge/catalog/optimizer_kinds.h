// SPDX-License-Identifier: Apache-2.0
// The optimizers, built-in and of plug-ins: the state that each keeps for a parameter. How it changes parameters is in
// optim/update_rule.h.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "stepforge/base/registry.h"
#include "stepforge/config/config.h"
#include "stepforge/modelspec/model_spec.h"
#include "stepforge/modelspec/slot_layout.h"

namespace stepforge {

struct UpdateOptions;  // optim/update_rule.h, which needs libtorch
struct UpdateRule;

/// A value of optimizer.name; registered by plug-ins. Storage, offload, checkpoints and the memory account follow from its
/// slots.
struct OptimizerKind {
  static constexpr std::string_view kKind = "optimizer";
  std::string_view name;
  /// The slots of a parameter, in the order in which an update takes them; filled with zeros at the start. They are saved as
  /// "optim.state.<parameter>.<slot>". Null: it has none.
  std::vector<SlotSpec> (*slots)(const OptimizerConfig& settings, const Extensions& extensions) = nullptr;
  /// Which parameters it updates; AdamW updates the others. Null: all.
  bool (*takes)(const ParameterSpec& parameter) = nullptr;
  /// The fields of [optimizer] that it reads besides lr, weight_decay and decay_all, separated by spaces: "beta1 eps". Others
  /// are refused if a user sets them.
  std::string_view reads = {};
  /// An update takes a whole matrix [rows, columns], one sub-tensor of a parameter; otherwise any flat interval of elements.
  /// On several ranks it needs parallelism.fsdp_partition = "by_tensor".
  bool by_matrix = false;
  /// Bytes that an update of a matrix allocates and frees; of an interval, rows is 1. Null: none.
  int64_t (*workspace)(const OptimizerConfig& settings, const Extensions& extensions, int64_t rows,
                       int64_t columns) = nullptr;
  /// How it updates, for parameters with these options; `extensions` is for the section of a plug-in. Null in the rows of the
  /// program, whose rules are in the library of libtorch.
  UpdateRule (*rule)(const UpdateOptions& options, const Extensions& extensions) = nullptr;
};

/// Those that need no plug-in: the choices of optimizer.name.
std::span<const OptimizerKind> builtin_optimizers();

/// The optimizer of a run: which kind updates each parameter, and what it needs.
class OptimizerChoice {
 public:
  /// Throws UsageError if neither the program nor a plug-in has settings.name.
  explicit OptimizerChoice(const OptimizerConfig& settings, const Extensions& extensions = {});

  const OptimizerKind& of(const ParameterSpec& parameter) const;
  /// Whether the kind reads this field of [optimizer], or the AdamW that updates what it does not take.
  bool reads(std::string_view option) const;
  std::vector<SlotSpec> slots(const ParameterSpec& parameter) const;
  /// None in a frozen unit.
  UnitSlots slots(const UnitSpec& unit) const;
  /// Bytes that an update of the unit allocates and frees on a rank with `shard_size` of its elements.
  int64_t workspace(const UnitSpec& unit, int64_t shard_size) const;

 private:
  OptimizerConfig settings_;
  Extensions extensions_;
  OptimizerKind kind_;
};

}  // namespace stepforge
