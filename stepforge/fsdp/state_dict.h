// What a model that is cut over ranks holds, by name: taken out, whole or as the parts of each rank, and put
// back. Serves weights and optimizer state alike. docs/fully-shard.md has the matrix of options.
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

/// Parts of a tensor, for example those that lie on one rank; perhaps none. Its slices do not overlap;
/// ShardSlice::local counts in `data` [elements], where each slice is row-major.
struct LocalValue {
  std::vector<int64_t> global_shape;
  std::vector<ShardSlice> slices;
  at::Tensor data;
};

/// A plain tensor is always a whole one, also where a rank's part has the same shape.
using StateValue = std::variant<at::Tensor, LocalValue>;
using StateDict = std::map<std::string, StateValue>;

struct GetStateOptions {
  bool full_state_dict = false;  ///< whole tensors, gathered, instead of LocalValues
  /// Copies in host memory; with full_state_dict on rank 0 only: the others get an empty dict.
  bool cpu_offload = false;
  bool ignore_frozen_params = false;  ///< leaves frozen parameters out
  /// With full_state_dict: every rank gets rank 0's values, also with cpu_offload, and also where replicas or
  /// what is kept whole (buffers) have come to differ.
  bool broadcast_from_rank0 = false;
};

struct LoadStateOptions {
  /// Names that lack in the dict, or that the model does not have, are errors; else they are passed over.
  bool strict = true;
  /// The model takes over the given tensors instead of copying from them. Only what is kept whole can: the
  /// parameters of a unit lie side by side in one buffer, and are refused.
  bool assign = false;
  bool ignore_frozen_params = false;  ///< frozen parameters may lack, also if strict
  /// Only rank 0's dict is read, which must hold whole tensors; the others may pass an empty one.
  bool broadcast_from_rank0 = false;
};

/// Sorted names.
struct LoadReport {
  std::vector<std::string> loaded;
  std::vector<std::string> missing;
  std::vector<std::string> unexpected;  ///< with broadcast_from_rank0 known to rank 0 only
};

/// One named tensor of a model: a parameter of a unit, or one that each rank keeps whole (a buffer, an
/// ignored or replicated parameter).
struct StateEntry {
  std::string name;
  int unit = -1;  ///< in StateSource::units; -1: kept whole
  size_t parameter = 0;
  at::Tensor whole;
  bool frozen = false;  ///< buffers are not
};

/// A unit's parameters: their masters, or an optimizer's values for them.
struct StateUnit {
  const UnitStore* store = nullptr;
  at::Tensor shard;  ///< [store->shard_size()]
};

/// Where a state dict is taken from and put. All ranks have the same entries in the same order; tied names
/// are several entries of one parameter.
struct StateSource {
  std::vector<StateUnit> units;
  std::vector<StateEntry> entries;
  Communicator* all = nullptr;  ///< all ranks of the model; null: one rank
};

/// Not full and not offloaded, values are the model's own memory; else copies. A collective if full. Throws
/// UsageError for broadcast_from_rank0 without full_state_dict.
StateDict get_state_dict(const StateSource& source, const GetStateOptions& options = {});

/// Copies values into the model, casting floating types: whole tensors or LocalValues, whose slices may be of
/// any layout as long as they cover what this rank holds. A collective. Throws Error on every rank, before
/// anything is written on any, naming all faults: names that lack or are unknown (strict), wrong shapes and
/// types, parts that overlap or do not cover, assign where it cannot be.
LoadReport load_state_dict(const StateSource& source, const StateDict& values,
                           const LoadStateOptions& options = {});

}  // namespace stepforge
