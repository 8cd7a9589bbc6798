// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "stepforge/modelspec/type_rules.h"

namespace stepforge {

namespace {

using enum ValueType;

std::ptrdiff_t count(const std::vector<Exchange>& exchanges, ExchangeKind kind) {
  return std::ranges::count(exchanges, kind, &Exchange::kind);
}

/// Over experts a part of the channels means: rows that were sent to this rank, with all of their channels. A call that is not told
/// the experts of its rows has one matrix for all of them.
bool has_one_matrix_for_rows(const TypePlace& place) {
  return place.axis.axis == BlockAxis::experts &&
         std::ranges::none_of(place.call->operands,
                              [](const LayerValue& operand) { return operand.type == ElementType::int32; });
}

ValueType by_weight(const TypePlace& place, ValueType x, ValueType by_rows) {
  switch (place.division()) {
    case Division::rows:
      place.require_type(x, replicated, "the input of a weight that is divided by rows");
      return by_rows;
    case Division::columns:
      place.require_type(x, channels, "the input of a weight that is divided by columns");
      return partial;
    case Division::experts:
      place.require_type(x, channels, "the input of the experts of a rank, the rows that take them,");
      return channels;
    case Division::whole:
      place.require(x != channels || has_one_matrix_for_rows(place),
                    "a part of the channels (S(channels)) meets a weight that is not divided");
      return x;
  }
  return x;
}

/// Attention of some of the tokens of a row needs the keys of the others.
void check_keys(const TypePlace& place, ValueType x) {
  const std::vector<Exchange> forward = place.forward_exchanges();
  const std::vector<Exchange> backward = place.backward_exchanges();
  if (x != tokens) {
    place.require_no_exchange(forward);
    return place.require_no_exchange(backward);
  }
  place.require(!forward.empty(),
                "sees only its own tokens of each row: the keys of the others are not exchanged");
  const bool ring = forward[0].kind == ExchangeKind::shift;
  place.require(forward.size() == 1 && (ring || forward[0].kind == ExchangeKind::gather),
                "the keys of other tokens are gathered or shifted, once");
  place.require(count(backward, ring ? ExchangeKind::shift : ExchangeKind::sum_slice) > 0,
                "the gradients of keys are not returned to the ranks that have the tokens");
  // A ring passes keys and their gradients; otherwise keys may be gathered once more.
  place.require(ring ? backward.size() <= 2
                     : count(backward, ExchangeKind::sum_slice) == 1 &&
                           count(backward, ExchangeKind::gather) + 1 == std::ssize(backward) &&
                           backward.size() <= 2,
                "the gradients of keys are returned more than once");
}

ValueType loss_type(const TypePlace& place, ValueType x) {
  const std::vector<Exchange> exchanges = place.forward_exchanges();
  if (place.division() == Division::whole) {
    place.require_no_exchange(exchanges);
    place.require(x != channels, "a part of the channels (S(channels)) meets a weight that is not divided");
    return of_other_tokens(x) ? partial : x;
  }
  place.require_type(x, replicated, "the input of a divided vocabulary");
  // Its maxima and sums are combined, or all logits gathered.
  const auto sums = count(exchanges, ExchangeKind::sum);
  const auto gathers = count(exchanges, ExchangeKind::gather);
  place.require(sums + gathers > 0,
                "the loss of a part of the vocabulary is not that of all of it: nothing is summed");
  place.require(sums + gathers == 1, "the parts of the vocabulary are combined twice");
  place.require(count(exchanges, ExchangeKind::max) <= sums, "the largest of all logits is known");
  return replicated;
}

ValueType linear_type(const TypePlace& place, ValueType x) {
  std::vector<Exchange> exchanges = place.forward_exchanges();
  x = product_input(place, x, exchanges);
  ValueType made = by_weight(place, x, /*by_rows=*/channels);
  if (place.scatters_result())
    made = place.after(made, taken(exchanges, ExchangeKind::sum_slice), "its result");
  place.require_no_exchange(exchanges);
  return made;
}

}  // namespace

ValueType product_input(const TypePlace& place, ValueType x, std::vector<Exchange>& exchanges) {
  return place.gathers_input() ? place.after(x, taken(exchanges, ExchangeKind::gather), "its input") : x;
}

ValueType result_type(const TypePlace& place, ValueType x) {
  const TypeRule rule = place.rule();
  if (rule == TypeRule::exchange) return place.after(x, place.forward_exchanges(), "its input");
  place.require(x != partial, "uses a partial sum (P), which must be summed first");
  switch (rule) {
    case TypeRule::lookup:
      place.require_no_exchange(place.forward_exchanges());
      return by_weight(place, x, /*by_rows=*/partial);
    case TypeRule::linear:
    case TypeRule::linear_add:
      return linear_type(place, x);
    case TypeRule::attention:
      check_keys(place, x);
      return x;
    case TypeRule::loss:
      return loss_type(place, x);
    default:
      place.require_no_exchange(place.forward_exchanges());
      return x;
  }
}

}  // namespace stepforge
