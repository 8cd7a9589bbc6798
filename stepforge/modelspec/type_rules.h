// SPDX-License-Identifier: Apache-2.0
// The rules of value_types.h for one call on one axis.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/modelspec/value_types.h"

namespace stepforge {

/// Whether every rank has other tokens.
inline bool of_other_tokens(ValueType type) {
  return type == ValueType::varying || type == ValueType::tokens;
}

/// Where in a model a type is inferred, and what refuses it there. Texts are made only for a refusal: a large
/// model has thousands of calls on each axis.
struct TypePlace {
  const ModelSpec& model;
  const BlockSpec& block;
  const TypeAxis& axis;
  const CallInfo* call = nullptr;  ///< null for what concerns the block
  CallExchanges exchanges = {};    ///< of the call

  /// Goes to a call, or to the block.
  void go_to(const CallInfo* next);

  [[noreturn]] void fail(std::string_view reason) const;
  void require(bool fits, std::string_view reason) const {
    if (!fits) fail(reason);
  }
  void require_type(ValueType type, ValueType wanted, std::string_view value) const;
  void require_no_exchange(const std::vector<Exchange>& exchanges) const;

  /// How a weight of the block is divided over the axis.
  Division division_of(const std::string& weight) const;
  /// The same for the call's first weight.
  Division division() const;
  TypeRule rule() const { return call->rule(); }
  const std::vector<CallWeight>& weights() const { return call->call->weights; }
  /// Whether the product gathers its input, or sums slices of its result, while it computes, in forward.
  bool gathers_input() const;
  bool scatters_result() const;

  /// What the call exchanges over the axis, without gradients of weights.
  std::vector<Exchange> forward_exchanges() const;
  std::vector<Exchange> backward_exchanges() const;
  /// Those of gradients of weights.
  std::vector<Exchange> weight_exchanges() const;

  /// The type of `value`, which is a `type`, after it was exchanged.
  ValueType after(ValueType type, const std::vector<Exchange>& exchanges, std::string_view value) const;
};

/// Moves the exchange of this kind, if there is one, to a list of its own.
std::vector<Exchange> taken(std::vector<Exchange>& exchanges, ExchangeKind kind);

/// The types of the gradients of weights, by name.
using WeightTypes = std::map<std::string, ValueType>;

/// The type of what a product multiplies, for an input `x` of the call. Takes what it gathers from the exchanges in forward.
ValueType product_input(const TypePlace& place, ValueType x, std::vector<Exchange>& exchanges);

/// The type of the result of the call, for an input `x`.
ValueType result_type(const TypePlace& place, ValueType x);

/// The type of the gradient of `x`, for the `gradient` of the result. Adds the gradients of the call's
/// weights.
ValueType input_gradient_type(const TypePlace& place, ValueType x, ValueType gradient, WeightTypes& weights);

}  // namespace stepforge
