// One call of a sharded module: what happens before its forward to the inputs, and after it to the outputs.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

namespace stepforge {

class ShardedUnit;

/// Pointers to the tensors that a call takes or returns; they are replaced in place.
using TensorRefs = std::vector<at::Tensor*>;

/// On the stack around a module's forward. Without a successful exit() the call has failed.
class UnitCall {
 public:
  explicit UnitCall(std::shared_ptr<ShardedUnit> unit);
  ~UnitCall();
  UnitCall(const UnitCall&) = delete;
  UnitCall& operator=(const UnitCall&) = delete;

  /// Gathers the unit, casts inputs, and ties them to the reduction in backward.
  void enter(const TensorRefs& inputs);
  /// Gives gathered values back, casts outputs, and ties them to the gather in backward.
  void exit(const TensorRefs& outputs);

 private:
  std::vector<std::shared_ptr<ShardedUnit>> units_;  ///< those borrowed from, then the module's own
  std::vector<std::size_t> positions_;  ///< of their enter events in the trace; empty without graph
  std::size_t entered_ = 0;             ///< units in use
  bool left_ = false;
};

}  // namespace stepforge
