// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "stepforge/base/format.h"
#include "stepforge/modelspec/calls/linear.h"
#include "stepforge/modelspec/type_rules.h"

namespace stepforge {

namespace {

using enum ValueType;

std::vector<Exchange> over_axis(const std::vector<Exchange>& exchanges, const TypeAxis& axis,
                                bool of_weights) {
  std::vector<Exchange> found;
  for (const Exchange& exchange : exchanges)
    if (exchange.axis == axis.axis && !exchange.constant && (exchange.weight_bytes > 0) == of_weights)
      found.push_back(exchange);
  return found;
}

struct FoundParameter {
  const UnitSpec& unit;
  const ParameterSpec& parameter;
};

FoundParameter parameter_at(const TypePlace& place, const std::string& name) {
  for (const int index : place.block.units) {
    const UnitSpec& unit = place.model.units.at(static_cast<std::size_t>(index));
    for (const ParameterSpec& parameter : unit.parameters)
      if (parameter.name == name) return {unit, parameter};
  }
  place.fail(format("uses the parameter {}, which is in none of the units of the block", name));
}

ValueType after_one(const TypePlace& place, ValueType type, ExchangeKind kind, std::string_view value) {
  const auto refuse = [&](const char* wanted) {
    place.fail(format("{} is {}: a {} needs {}", value, type_name(type), exchange_name(kind), wanted));
  };
  switch (kind) {
    case ExchangeKind::sum:
      if (type != partial) refuse("a partial sum (P)");
      return replicated;
    case ExchangeKind::sum_slice:
      if (type != partial) refuse("a partial sum (P)");
      return tokens;
    case ExchangeKind::gather:
      if (type != tokens && type != channels) refuse("parts (S)");
      return replicated;
    case ExchangeKind::slice:
      if (type != replicated) refuse("the whole (R)");
      return tokens;
    case ExchangeKind::all_to_all:
      if (type != tokens && type != channels) refuse("parts (S)");
      return type == tokens ? channels : tokens;
    case ExchangeKind::max:
      place.fail("a max outside the loss");
    case ExchangeKind::shift:
      place.fail("a shift outside attention");
  }
  return type;
}

}  // namespace

std::vector<Exchange> taken(std::vector<Exchange>& exchanges, ExchangeKind kind) {
  std::vector<Exchange> found;
  const auto exchange = std::ranges::find(exchanges, kind, &Exchange::kind);
  if (exchange == exchanges.end()) return found;
  found.push_back(*exchange);
  exchanges.erase(exchange);
  return found;
}

void TypePlace::go_to(const CallInfo* next) {
  call = next;
  exchanges = next != nullptr ? next->exchanges() : CallExchanges();
}

void TypePlace::fail(std::string_view reason) const {
  std::string place = block.name;
  if (call != nullptr) place += format(", {}, {}", call->call->region, call->call->name);
  throw ValueTypeError(format("{}, over {}: {}", place, axis.name, reason));
}

void TypePlace::require_type(ValueType type, ValueType wanted, std::string_view value) const {
  if (type != wanted) fail(format("{} is {}, but must be {}", value, type_name(type), type_name(wanted)));
}

void TypePlace::require_no_exchange(const std::vector<Exchange>& exchanges) const {
  if (!exchanges.empty())
    fail(format("a {} where nothing must be exchanged", exchange_name(exchanges[0].kind)));
}

Division TypePlace::division_of(const std::string& weight) const {
  const auto [unit, parameter] = parameter_at(*this, weight);
  if (axis.axis == BlockAxis::experts)
    return unit.mesh == UnitMesh::experts ? Division::experts : Division::whole;
  const bool may_be_divided = axis.axis == BlockAxis::tensor && unit.mesh == UnitMesh::rows;
  return may_be_divided ? parameter.division() : Division::whole;
}

Division TypePlace::division() const {
  require(!weights().empty(), "has no weight");
  return division_of(weights().front().name);
}

bool TypePlace::gathers_input() const {
  return axis.axis == BlockAxis::tensor && linear_attributes(*call->call).gathers_input;
}

bool TypePlace::scatters_result() const {
  return axis.axis == BlockAxis::tensor && linear_attributes(*call->call).scatters_result;
}

std::vector<Exchange> TypePlace::forward_exchanges() const {
  return over_axis(exchanges.forward, axis, /*of_weights=*/false);
}

std::vector<Exchange> TypePlace::backward_exchanges() const {
  return over_axis(exchanges.backward, axis, /*of_weights=*/false);
}

std::vector<Exchange> TypePlace::weight_exchanges() const {
  return over_axis(exchanges.backward, axis, /*of_weights=*/true);
}

ValueType TypePlace::after(ValueType type, const std::vector<Exchange>& exchanges,
                           std::string_view value) const {
  for (const Exchange& exchange : exchanges) type = after_one(*this, type, exchange.kind, value);
  return type;
}

}  // namespace stepforge
