// SPDX-License-Identifier: Apache-2.0
#include "stepforge/base/format.h"
#include "stepforge/modelspec/type_rules.h"

namespace stepforge {

namespace {

using enum ValueType;

ValueType exchange_gradient(const TypePlace& place, ValueType gradient,
                            const std::vector<Exchange>& exchanges) {
  const std::vector<Exchange> forward = place.forward_exchanges();
  if (exchanges.empty() && !forward.empty() && forward.front().kind == ExchangeKind::slice)
    return partial;  // zero outside the slice
  return place.after(gradient, exchanges, "the gradient of its result");
}

void add_weight(const TypePlace& place, WeightTypes& weights, const std::string& name, ValueType type) {
  if (const std::vector<Exchange> exchanges = place.weight_exchanges(); !exchanges.empty())
    type = place.after(type, exchanges, "the gradient of " + name);
  const auto [known, added] = weights.emplace(name, type);
  if (!added && known->second != type) {
    place.fail(format("the gradients of {} are {} here and {} elsewhere", name, type_name(type),
                      type_name(known->second)));
  }
}

ValueType through_weight(const TypePlace& place, ValueType x, ValueType gradient, WeightTypes& weights) {
  const std::string& weight = place.weights().front().name;
  switch (place.division()) {
    case Division::rows:
      add_weight(place, weights, weight, channels);
      return partial;
    case Division::columns:
      place.require_type(gradient, replicated, "the gradient of its result");
      add_weight(place, weights, weight, channels);
      return channels;
    case Division::experts:
      place.require_type(gradient, channels, "the gradient of the rows of experts");
      for (const CallWeight& part : place.weights()) add_weight(place, weights, part.name, channels);
      return channels;
    case Division::whole:
      for (const CallWeight& part : place.weights())
        add_weight(place, weights, part.name, x != replicated || gradient == partial ? partial : replicated);
      return gradient;
  }
  return gradient;
}

ValueType elementwise_weight(const TypePlace& place, const std::string& weight, ValueType x,
                             ValueType gradient) {
  if (place.division_of(weight) == Division::whole)
    return x != replicated || gradient == partial ? partial : replicated;
  place.require_type(x, channels, "the input of a weight that is divided");
  return channels;
}

ValueType loss_gradient(const TypePlace& place, ValueType x, WeightTypes& weights) {
  const bool divided = place.division() != Division::whole;
  for (const CallWeight& weight : place.weights())
    add_weight(place, weights, weight.name, divided ? channels : of_other_tokens(x) ? partial : replicated);
  return divided ? partial : x;
}

ValueType linear_gradient(const TypePlace& place, ValueType x, ValueType gradient, WeightTypes& weights) {
  std::vector<Exchange> exchanges = place.backward_exchanges();
  std::vector<Exchange> forward = place.forward_exchanges();
  if (place.scatters_result())
    gradient = place.after(gradient, taken(exchanges, ExchangeKind::gather), "the gradient of its result");
  ValueType made = through_weight(place, product_input(place, x, forward), gradient, weights);
  if (place.gathers_input()) {
    made = place.after(made, taken(exchanges, ExchangeKind::sum_slice), "the gradient of its input");
    if (place.call->call->trains())
      place.require(!taken(exchanges, ExchangeKind::gather).empty(),
                    "keeps a slice of its input and does not gather it once in backward");
  }
  place.require_no_exchange(exchanges);
  return made;
}

}  // namespace

ValueType input_gradient_type(const TypePlace& place, ValueType x, ValueType gradient, WeightTypes& weights) {
  const std::vector<Exchange> exchanges = place.backward_exchanges();
  switch (place.rule()) {
    case TypeRule::exchange:
      return exchange_gradient(place, gradient, exchanges);
    case TypeRule::linear:
    case TypeRule::linear_add:
      return linear_gradient(place, x, gradient, weights);
    case TypeRule::lookup:
      place.require_no_exchange(exchanges);
      return through_weight(place, x, gradient, weights);
    case TypeRule::loss:
      place.require_no_exchange(exchanges);
      return loss_gradient(place, x, weights);
    case TypeRule::attention:
      for (const CallWeight& weight : place.weights())
        add_weight(place, weights, weight.name, elementwise_weight(place, weight.name, x, gradient));
      return gradient;
    default:
      place.require_no_exchange(exchanges);
      for (const CallWeight& weight : place.weights())
        if (!weight.constant)
          add_weight(place, weights, weight.name, elementwise_weight(place, weight.name, x, gradient));
      return gradient;
  }
}

}  // namespace stepforge
