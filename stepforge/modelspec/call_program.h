// SPDX-License-Identifier: Apache-2.0
// The steps of a list of calls, forward and backward, with the memory that each reads, writes and frees. The backward pass is
// derived: the derivative of each call in reverse order, sums where a value is used more than once, and again the calls whose
// results are not kept. nn/list_block.h runs the steps, and call_cost.h prices them.
#pragma once

#include <cstdint>
#include <vector>

#include "stepforge/modelspec/call_kind.h"
#include "stepforge/modelspec/call_list.h"

namespace stepforge {

inline constexpr int kNoTensor = -1;

enum class CallAction : uint8_t {
  forward,  ///< reads operands, writes results
  backward,  ///< reads gradients of results, operands, results, and a summand; writes gradients of operands and weights
  add  ///< writes the sum of two gradients
};

/// One step. Entries are buffers; kNoTensor: not needed, or not wanted. A buffer that a step reads and writes is overwritten.
struct CallStep {
  CallAction action = CallAction::forward;
  int call = -1;  ///< index in the list
  std::vector<int> reads;
  std::vector<int> writes;
  std::vector<int> frees = {};  ///< after the step: nothing reads them any more
};

struct BlockProgram {
  std::vector<int> buffers;  ///< of each the value whose shape it has
  std::vector<CallStep> forward;
  std::vector<CallStep> backward;
  std::vector<int> inputs;  ///< which belong to the caller
  std::vector<int> outputs;
  std::vector<int> saved;             ///< what forward keeps for backward, inputs left out
  std::vector<int> output_gradients;  ///< which belong to the caller
  std::vector<int> input_gradients;
};

/// A call of a list with the values that it reads and makes.
struct CallInfo {
  const Call* call = nullptr;
  std::vector<LayerValue> operands;
  std::vector<LayerValue> results;

  const CallKind& kind() const { return *call->kind; }
  CallView view() const { return {*call, operands}; }
  TypeRule rule() const;
  CallWorkspace workspace() const;
  CallExchanges exchanges() const;
  CallValues derivative_reads() const;
  bool passes_gradient(std::size_t operand) const;
  bool adds_gradient() const;
  /// The operand that the first result is, or may overwrite; kNoOperand if there is none.
  int aliases_operand() const;
  int overwrites() const;
};

/// Of each call of the list, which must outlive them.
std::vector<CallInfo> call_infos(const CallList& list);

/// `trains`: with a backward pass, for the gradients of all inputs and trained weights. `calls` are those of the list.
BlockProgram derive(const CallList& list, const std::vector<CallInfo>& calls, bool trains);
inline BlockProgram derive(const CallList& list, bool trains) {
  return derive(list, call_infos(list), trains);
}

/// Which calls of the list backward makes again.
std::vector<bool> calls_made_again(const CallList& list);

/// Which values the derivatives of the calls read: they are kept, or made again from others that are.
std::vector<bool> values_read_by_derivatives(const CallList& list);

}  // namespace stepforge
