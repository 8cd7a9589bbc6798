// SPDX-License-Identifier: Apache-2.0
// The types of values on the axes of the mesh: how what the ranks of an axis have of one value belongs together.
// They are inferred through every block, forward and backward, from its calls and from how its parameters are
// divided; a sum that is missing or made twice is found without a tensor. After the types of meta-pytorch's
// spmd_types.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/base/error.h"
#include "stepforge/modelspec/call_program.h"
#include "stepforge/modelspec/model_spec.h"

namespace stepforge {

enum class ValueType : uint8_t {
  replicated,  ///< R: every rank has all of it
  varying,     ///< V: every rank has a value of its own, of other rows
  partial,     ///< P: the value is the sum over the ranks
  tokens,      ///< S(tokens): every rank has a part of the tokens of the same rows
  channels     ///< S(channels): every rank has some heads, hidden units or tokens of the vocabulary
};

/// "R", "V", "P", "S(tokens)", "S(channels)"
std::string_view type_name(ValueType type);

/// An axis of the mesh as blocks see it.
struct TypeAxis {
  std::string_view name;                     ///< "tensor"
  std::optional<BlockAxis> axis;             ///< nothing for "data", over which no block exchanges
  ValueType tokens = ValueType::replicated;  ///< of the tokens of a micro-batch
  /// Whether the step sums the gradients of all weights over it. Otherwise it sums those of units whose mesh includes it,
  /// and of the others the blocks do where it is needed.
  bool summed_by_step = false;
};

/// "data", and the axes over which the model is divided.
std::vector<TypeAxis> type_axes(const ModelSpec& model);

/// The types of the result of a call and of the gradient of that result.
struct CallTypes {
  const CallInfo* call = nullptr;
  ValueType value = ValueType::replicated;
  ValueType gradient = ValueType::replicated;
};

/// Breaks a rule; the text names block, region, call, parameter and axis.
class ValueTypeError : public Error {
 public:
  using Error::Error;
};

/// The types of the calls of a block on one axis, those that only make indices left out. `calls` are those of its list. The
/// rules, for an input X and the gradient G of the result; the gradient of a value of type R may be R or, before it is summed, P.
/// - elementwise: X is not P; the result is X, the gradient is G. The gradient of a weight is P if X is V or S or
///   if G is P, otherwise R. With a part of a weight, such as a bias, X is S(channels).
/// - lookup and linear by a whole weight: likewise. By a part of the rows (output channels): X is R, the result is
///   S(channels), or P for a lookup; the gradient is P. By a part of the columns: X is S(channels), the result is
///   P; G is R, the gradient is S(channels). The gradient of a part is a part.
///   While it computes, a product may gather slices of X before it, and sum slices of its result after it (asynchronous tensor
///   parallelism); then it gathers X again for the gradient of a trained weight, once.
/// - linear_add: as linear of the first operand; the second has the type of the result and gets its gradient.
/// - linear by the weights of this rank's experts: X and G are S(channels), the rows that take them; the gradient is of
///   its own part and not summed. By a whole weight, which experts on all ranks share: the result is S(channels), and the
///   gradient of the weight P.
/// - Over experts, what a block takes and makes is S(channels) if it is dispatched to it, and otherwise V; only a
///   dispatch and the combination of its results change that, and both belong to one block.
/// - attention of S(tokens) gathers or shifts keys in forward, and sums or shifts their gradients in backward, once.
///   Any other X is as for elementwise, without exchanges.
/// - loss by a whole weight: R, or P if tokens are divided. By a part of the rows: X is R, and either the sums (and
///   maxima) of the logits are combined or the logits gathered; the gradient is P.
/// - sum: P to R. gather: S to R. sum_slice: P to S(tokens). slice: R to S(tokens). all_to_all: S(tokens) to
///   S(channels) and back. In backward the same rules apply to the gradient; a slice of a value becomes P.
/// - All operands of a call have one type, and so have the gradients of all uses of a value. A value of type P has a gradient of
///   type R, and every other one a gradient of its own type, unless it is R and the gradient has not been summed.
/// - What passes between blocks is what BlockSpec says, and its gradient is complete.
/// - The gradient of a weight is P on axes over which the step sums, and not P on others. Over tensor the step sums those of
///   units that are sharded over it (UnitMesh), whose tensors no rank has a part of.
/// Throws ValueTypeError.
std::vector<CallTypes> value_types(const ModelSpec& model, const BlockSpec& block,
                                   std::span<const CallInfo> calls, const TypeAxis& axis);

/// Checks all blocks on all axes, and that a call uses each trained parameter. Throws ValueTypeError.
void check_value_types(const ModelSpec& model);

}  // namespace stepforge
