// SPDX-License-Identifier: Apache-2.0
// A block of your own, in tensor operations. Its list of calls only states what it computes (modelspec/calls/operations.h).
#pragma once

#include "stepforge/nn/block.h"

namespace stepforge {

/// Autograd differentiates it. Its parameters are those of the specification: Parameter::value() is a leaf.
class AutogradBlock : public Block {
 public:
  ForwardPass forward(const Bundle& inputs, const Context& context, bool trains) final;

 protected:
  /// The outputs, in any operations of libtorch.
  virtual Bundle compute(const Bundle& inputs, const Context& context) = 0;
};

}  // namespace stepforge
