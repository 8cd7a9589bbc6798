// SPDX-License-Identifier: Apache-2.0
// The interpreter of lists of calls: runs a block forward, and backward by the derived steps (modelspec/call_program.h).
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "stepforge/modelspec/call_program.h"
#include "stepforge/nn/block.h"
#include "stepforge/nn/call_entries.h"

namespace stepforge {

/// A block that runs a list of calls, perhaps without inputs, without autograd: memory is freed where the steps say so, and only
/// values that backward reads are kept.
class ListBlock : public Block {
 public:
  /// Looks up the weights of the calls. `generation` is the list with which tokens are generated. Throws Error if there is no
  /// such parameter.
  ListBlock(CallList training, CallList generation, const ParameterLookup& parameters,
            std::shared_ptr<const LayerResources> resources);
  ~ListBlock() override;
  ListBlock(const ListBlock&) = delete;
  ListBlock& operator=(const ListBlock&) = delete;

  ForwardPass forward(const Bundle& inputs, const Context& context, bool trains) override;

 private:
  class Buffers;
  struct Steps;
  struct Kept;

  /// The steps for the context, its recomputed regions and tokens further ahead; derived when they are first asked for.
  std::shared_ptr<const Steps> steps(const Context& context, bool trains);
  /// A list with the parameters of each of its calls.
  struct BoundList {
    BoundList(CallList calls, const ParameterLookup& parameters);
    CallList list;
    std::map<std::string, Parameter*> parameters;
  };

  BoundList training_;
  BoundList generation_;
  std::shared_ptr<const LayerResources> resources_;
  std::vector<std::shared_ptr<const Steps>> steps_;
};

}  // namespace stepforge
