// SPDX-License-Identifier: Apache-2.0
// One call of a sharded module: the work before and after its forward.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

namespace stepforge {

class ShardedUnit;

/// Pointers to the tensors that a call takes or returns; they are replaced in place.
using TensorRefs = std::vector<at::Tensor*>;

/// Lives on the stack around a module's forward. If exit() is not called, the call has failed.
class UnitCall {
 public:
  explicit UnitCall(std::shared_ptr<ShardedUnit> unit);
  ~UnitCall();
  UnitCall(const UnitCall&) = delete;
  UnitCall& operator=(const UnitCall&) = delete;

  /// Gathers the unit, casts the inputs, and attaches the node that reduces the unit in backward.
  void enter(const TensorRefs& inputs);
  /// Frees gathered values, casts the outputs, and attaches the node that gathers the unit in backward.
  void exit(const TensorRefs& outputs);

 private:
  std::vector<std::shared_ptr<ShardedUnit>> units_;  ///< the units of tied parameters, then the module's own
  std::vector<std::size_t> positions_;  ///< of their enter events in the trace; empty without a graph
  std::size_t entered_ = 0;             ///< units in use
  bool exited_ = false;
};

}  // namespace stepforge
