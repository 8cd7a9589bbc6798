// SPDX-License-Identifier: Apache-2.0
// State dicts of a sharded model: its tensors by name, whole or as each rank's parts. For weights and for
// optimizer state. docs/fully-shard.md has a table of the options.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stepforge/comm/communicator.h"
#include "stepforge/storage/unit_store.h"

namespace stepforge {

/// Parts of a tensor, for example those on one rank; may be empty. The slices do not overlap. With tensor
/// parallelism shape and slices are those of the whole tensor. ShardSlice::local is an index into `data`
/// [elements], where each slice is row-major.
struct LocalValue {
  std::vector<int64_t> global_shape;
  std::vector<ShardSlice> slices;
  at::Tensor data;
};

/// A plain tensor is always the whole tensor, even if a rank's part has the same shape.
using StateValue = std::variant<at::Tensor, LocalValue>;
using StateDict = std::map<std::string, StateValue>;

struct GetStateOptions {
  bool full_state_dict = false;  ///< whole tensors, gathered, instead of LocalValues
  /// Copies in host memory; with full_state_dict on rank 0 only, the other ranks get an empty dict.
  bool cpu_offload = false;
  bool ignore_frozen_params = false;  ///< omit frozen parameters
  /// With full_state_dict: every rank gets rank 0's values, even with cpu_offload, and even if replicas or
  /// buffers differ between ranks.
  bool broadcast_from_rank0 = false;
};

struct LoadStateOptions {
  /// Names that are missing in the dict or unknown to the model are errors; if not strict, they are skipped.
  bool strict = true;
  /// The model uses the given tensors themselves instead of copying. Only for tensors that every rank keeps
  /// whole: the parameters of a unit share one buffer and are refused.
  bool assign = false;
  bool ignore_frozen_params = false;  ///< frozen parameters may be missing, even if strict
  /// Only rank 0's dict is read, which must hold whole tensors; the others may pass an empty one.
  bool broadcast_from_rank0 = false;
};

/// The names of tensors, sorted.
struct LoadReport {
  std::vector<std::string> loaded;
  std::vector<std::string> missing;
  std::vector<std::string> unexpected;  ///< with broadcast_from_rank0 on rank 0 only
};

/// One named tensor of a model: a parameter of a unit, or a tensor that each rank keeps whole (a buffer, an
/// ignored parameter).
struct StateEntry {
  std::string name;
  int unit = -1;  ///< in StateSource::units; -1: kept whole
  size_t parameter = 0;
  at::Tensor whole;
  bool frozen = false;  ///< never true for buffers
};

/// A unit's parameters: their masters, or an optimizer's values for them.
struct StateUnit {
  const UnitStore* store = nullptr;
  at::Tensor shard;  ///< [store->shard_size()]
};

/// The tensors that a state dict is read from and loaded into. All ranks have the same entries in the same
/// order; tied names are several entries of one parameter.
struct StateSource {
  std::vector<StateUnit> units;
  std::vector<StateEntry> entries;
  Communicator* all = nullptr;           ///< all ranks of the model; null: one rank
  Communicator* tensor_ranks = nullptr;  ///< those that hold the other slices of tensors; null: one rank
};

/// Without full_state_dict and cpu_offload, values share the model's memory; otherwise they are copies. A
/// collective with full_state_dict. Throws UsageError for broadcast_from_rank0 without full_state_dict.
StateDict get_state_dict(const StateSource& source, const GetStateOptions& options = {});

/// Copies whole tensors or LocalValues into the model, casting floating types. The slices of a LocalValue may
/// have any layout that covers what this rank holds. A collective. Throws Error on every rank, before
/// anything is written on any rank, naming all faults of this rank, or else those of the first rank that has
/// any:
/// - missing or unknown names, if strict;
/// - wrong shapes and types;
/// - slices that overlap or do not cover;
/// - assign to a parameter of a unit.
LoadReport load_state_dict(const StateSource& source, const StateDict& values,
                           const LoadStateOptions& options = {});

}  // namespace stepforge
