// SPDX-License-Identifier: Apache-2.0
#include "stepforge/modelspec/value_types.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "stepforge/base/format.h"

namespace stepforge {

namespace {

using enum ValueType;

/// How a weight is divided over an axis.
enum class Division : uint8_t { whole, rows, columns };

/// Whether every rank has other tokens.
bool of_other_tokens(ValueType type) {
  return type == varying || type == tokens;
}

Division division_of(const ParameterSpec& parameter, const TypeAxis& axis) {
  if (axis.axis != BlockAxis::tensor || !parameter.is_sliced()) return Division::whole;
  const bool by_columns =
      parameter.shape.size() > 1 && parameter.tensor_shape(0).at(1) != parameter.shape.at(1);
  return by_columns ? Division::columns : Division::rows;
}

/// Infers the types of one block on one axis.
class BlockTypes {
 public:
  BlockTypes(const ModelSpec& model, const BlockSpec& block, const TypeAxis& axis)
      : model_(model), block_(block), axis_(axis) {}

  std::vector<CallTypes> infer() {
    forward();
    backward();
    check_weights();
    return std::move(types_);
  }

 private:
  [[noreturn]] void fail(const std::string& reason) const {
    std::string place = block_.name;
    if (region_ != nullptr) place += ", " + region_->name;
    if (call_ != nullptr) place += ", " + call_->name;
    throw ValueTypeError(format("{}, over {}: {}", place, axis_.name, reason));
  }
  void require(bool fits, const std::string& reason) const {
    if (!fits) fail(reason);
  }
  void require_type(ValueType type, ValueType wanted, const std::string& value) const {
    require(type == wanted, format("{} is {}, but must be {}", value, type_name(type), type_name(wanted)));
  }

  ValueType passed(const std::vector<BundleEntry>& bundle) const {
    if (axis_.axis != BlockAxis::tensor) return axis_.tokens;
    return !bundle.empty() && bundle.front().slice ? tokens : replicated;
  }

  const ParameterSpec& parameter(const std::string& name) const {
    for (const int index : block_.units)
      for (const ParameterSpec& parameter : model_.units.at(static_cast<std::size_t>(index)).parameters)
        if (parameter.name == name) return parameter;
    fail(format("uses the parameter {}, which is in none of the units of the block", name));
  }
  Division division() const {
    require(!call_->weights.empty(), "has no weight");
    return division_of(parameter(call_->weights.front()), axis_);
  }

  /// Those over this axis; those of gradients of weights, or the others.
  std::vector<Exchange> over_axis(const std::vector<Exchange>& exchanges, bool of_weights) const {
    std::vector<Exchange> found;
    for (const Exchange& exchange : exchanges)
      if (exchange.axis == axis_.axis && (exchange.weight_bytes > 0) == of_weights) found.push_back(exchange);
    return found;
  }
  std::vector<Exchange> forward_exchanges() const { return over_axis(call_->forward_exchanges, false); }
  std::vector<Exchange> backward_exchanges() const { return over_axis(call_->backward_exchanges, false); }

  static std::ptrdiff_t count(const std::vector<Exchange>& exchanges, ExchangeKind kind) {
    return std::ranges::count(exchanges, kind, &Exchange::kind);
  }
  void require_no_exchange(const std::vector<Exchange>& exchanges) const {
    if (!exchanges.empty())
      fail(format("a {} where nothing must be exchanged", exchange_name(exchanges[0].kind)));
  }

  // Forward.
  void forward() {
    ValueType type = block_.inputs.empty() ? axis_.tokens : passed(block_.inputs);
    for (const RegionSpec& region : block_.regions) {
      region_ = &region;
      const ValueType into = type;
      for (const CallSpec& call : region.calls) {
        if (call.kind == CallKind::memory) continue;
        call_ = &call;
        inputs_[&call] = type;
        type = result(type);
        types_.push_back({&region, &call, type, type});
      }
      call_ = nullptr;
      if (region.residual) require_type(type, into, "the result that is added to its input");
    }
    region_ = nullptr;
    if (!block_.outputs.empty())
      require_type(type, passed(block_.outputs), "what passes to the next block");
    else
      require_type(type, axis_.summed_by_step ? partial : replicated, "the loss");
  }

  ValueType result(ValueType x) const {
    if (call_->kind == CallKind::exchange) return after_exchanges(x, forward_exchanges(), "its input");
    require(x != partial, "uses a partial sum (P), which must be summed first");
    switch (call_->kind) {
      case CallKind::lookup:
        require_no_exchange(forward_exchanges());
        return by_weight(x, /*by_rows=*/partial);
      case CallKind::linear:
        require_no_exchange(forward_exchanges());
        return by_weight(x, /*by_rows=*/channels);
      case CallKind::attention:
        check_keys(x);
        return x;
      case CallKind::loss:
        return loss(x);
      default:
        require_no_exchange(forward_exchanges());
        return x;
    }
  }

  ValueType by_weight(ValueType x, ValueType by_rows) const {
    switch (division()) {
      case Division::rows:
        require_type(x, replicated, "the input of a weight that is divided by rows");
        return by_rows;
      case Division::columns:
        require_type(x, channels, "the input of a weight that is divided by columns");
        return partial;
      case Division::whole:
        require(x != channels, "a part of the channels (S(channels)) meets a weight that is not divided");
        return x;
    }
    return x;
  }

  /// Attention of some of the tokens of a row needs the keys of the others.
  void check_keys(ValueType x) const {
    const std::vector<Exchange> forward = forward_exchanges();
    const std::vector<Exchange> backward = backward_exchanges();
    if (x != tokens) {
      require_no_exchange(forward);
      return require_no_exchange(backward);
    }
    require(!forward.empty(),
            "sees only its own tokens of each row: the keys of the others are not exchanged");
    const bool ring = forward[0].kind == ExchangeKind::shift;
    require(forward.size() == 1 && (ring || forward[0].kind == ExchangeKind::gather),
            "the keys of other tokens are gathered or shifted, once");
    require(count(backward, ring ? ExchangeKind::shift : ExchangeKind::sum_slice) > 0,
            "the gradients of keys are not returned to the ranks that have the tokens");
    // A ring passes keys and their gradients; otherwise keys may be gathered once more.
    require(ring ? backward.size() <= 2
                 : count(backward, ExchangeKind::sum_slice) == 1 &&
                       count(backward, ExchangeKind::gather) + 1 == std::ssize(backward) &&
                       backward.size() <= 2,
            "the gradients of keys are returned more than once");
  }

  ValueType loss(ValueType x) const {
    const std::vector<Exchange> exchanges = forward_exchanges();
    if (division() == Division::whole) {
      require_no_exchange(exchanges);
      require(x != channels, "a part of the channels (S(channels)) meets a weight that is not divided");
      return of_other_tokens(x) ? partial : x;
    }
    require_type(x, replicated, "the input of a divided vocabulary");
    // Its maxima and sums are combined, or all logits gathered.
    const auto sums = count(exchanges, ExchangeKind::sum);
    const auto gathers = count(exchanges, ExchangeKind::gather);
    require(sums + gathers > 0,
            "the loss of a part of the vocabulary is not that of all of it: nothing is summed");
    require(sums + gathers == 1, "the parts of the vocabulary are combined twice");
    require(count(exchanges, ExchangeKind::max) <= sums, "the largest of all logits is known");
    return replicated;
  }

  ValueType after_exchanges(ValueType type, const std::vector<Exchange>& exchanges,
                            const std::string& value) const {
    for (const Exchange& exchange : exchanges) type = after(type, exchange.kind, value);
    return type;
  }

  ValueType after(ValueType type, ExchangeKind kind, const std::string& value) const {
    const auto refuse = [&](const char* wanted) {
      fail(format("{} is {}: a {} needs {}", value, type_name(type), exchange_name(kind), wanted));
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
        fail("a max outside the loss");
      case ExchangeKind::shift:
        fail("a shift outside attention");
    }
    return type;
  }

  // Backward.
  void backward() {
    // Of the loss the gradient is 1 on every rank; of what passes between blocks it is complete.
    ValueType gradient = types_.empty() ? replicated : types_.back().value;
    if (gradient == partial) gradient = replicated;
    auto typed = types_.rbegin();
    for (auto region = block_.regions.rbegin(); region != block_.regions.rend(); ++region) {
      region_ = &*region;
      const ValueType into = gradient;
      for (; typed != types_.rend() && typed->region == region_; ++typed) {
        call_ = typed->call;
        typed->gradient = gradient;
        gradient = input_gradient(inputs_.at(call_), gradient);
        check_gradient(inputs_.at(call_), gradient);
      }
      call_ = nullptr;
      if (region->residual)
        require(gradient == into,
                format("the gradient of its input is {}, and that of the residual {}: they cannot "
                       "be added",
                       type_name(gradient), type_name(into)));
    }
    region_ = nullptr;
    if (!block_.inputs.empty()) require_type(gradient, passed(block_.inputs), "the gradient of its input");
  }

  void check_gradient(ValueType value, ValueType gradient) const {
    const bool fits = value == partial ? gradient == replicated
                                       : gradient == value || (value == replicated && gradient == partial);
    require(fits,
            format("the gradient of its input, which is {}, is {}", type_name(value), type_name(gradient)));
  }

  ValueType input_gradient(ValueType x, ValueType gradient) {
    const std::vector<Exchange> exchanges = backward_exchanges();
    switch (call_->kind) {
      case CallKind::exchange:
        return exchange_gradient(gradient, exchanges);
      case CallKind::lookup:
      case CallKind::linear:
        check_kept_slice(x, exchanges);
        return through_weight(x, gradient);
      case CallKind::loss:
        require_no_exchange(exchanges);
        return loss_gradient(x);
      case CallKind::attention:
        return gradient;
      default:
        require_no_exchange(exchanges);
        for (const std::string& weight : call_->weights)
          add_weight(weight, elementwise_weight(weight, x, gradient));
        return gradient;
    }
  }

  ValueType exchange_gradient(ValueType gradient, const std::vector<Exchange>& exchanges) const {
    const std::vector<Exchange> forward = forward_exchanges();
    if (exchanges.empty() && !forward.empty() && forward.front().kind == ExchangeKind::slice)
      return partial;  // zero outside the slice
    return after_exchanges(gradient, exchanges, "the gradient of its result");
  }

  /// A layer that was given all tokens, but keeps only its slice of them, must gather them again.
  void check_kept_slice(ValueType x, const std::vector<Exchange>& exchanges) const {
    const bool keeps_slice =
        axis_.axis == BlockAxis::tensor && x == replicated && call_->saves.slice_compute > 0;
    if (!keeps_slice) return require_no_exchange(exchanges);
    require(exchanges.size() == 1 && exchanges.front().kind == ExchangeKind::gather,
            "keeps a slice of its input and does not gather it once in backward");
  }

  ValueType through_weight(ValueType x, ValueType gradient) {
    const std::string& weight = call_->weights.front();
    switch (division()) {
      case Division::rows:
        add_weight(weight, channels);
        return partial;
      case Division::columns:
        require_type(gradient, replicated, "the gradient of its result");
        add_weight(weight, channels);
        return channels;
      case Division::whole:
        add_weight(weight, of_other_tokens(x) || gradient == partial ? partial : replicated);
        return gradient;
    }
    return gradient;
  }

  ValueType elementwise_weight(const std::string& weight, ValueType x, ValueType gradient) const {
    if (division_of(parameter(weight), axis_) == Division::whole)
      return x != replicated || gradient == partial ? partial : replicated;
    require_type(x, channels, "the input of a weight that is divided");
    return channels;
  }

  ValueType loss_gradient(ValueType x) {
    const bool divided = division() != Division::whole;
    add_weight(call_->weights.front(), divided ? channels : of_other_tokens(x) ? partial : replicated);
    return divided ? partial : x;
  }

  // Weights.
  void add_weight(const std::string& name, ValueType type) {
    for (const Exchange& exchange : over_axis(call_->backward_exchanges, /*of_weights=*/true))
      type = after(type, exchange.kind, "the gradient of " + name);
    const auto [known, added] = weights_.emplace(name, type);
    require(added || known->second == type, format("the gradients of {} are {} here and {} elsewhere", name,
                                                   type_name(type), type_name(known->second)));
  }

  void check_weights() const {
    for (const int index : block_.units) {
      const UnitSpec& unit = model_.units.at(static_cast<std::size_t>(index));
      if (!unit.trainable) continue;
      for (const ParameterSpec& parameter : unit.parameters) {
        const auto found = weights_.find(parameter.name);
        if (found == weights_.end()) continue;
        if (axis_.summed_by_step)
          require_type(found->second, partial,
                       "the gradient of " + parameter.name + ", which the step sums,");
        else
          require(found->second != partial,
                  format("the gradient of {} is a partial sum (P) that nothing sums", parameter.name));
      }
    }
  }

  const ModelSpec& model_;
  const BlockSpec& block_;
  const TypeAxis& axis_;
  const RegionSpec* region_ = nullptr;
  const CallSpec* call_ = nullptr;
  std::vector<CallTypes> types_;
  std::map<const CallSpec*, ValueType> inputs_;
  std::map<std::string, ValueType> weights_;
};

}  // namespace

std::string_view type_name(ValueType type) {
  constexpr std::array<std::string_view, 5> kNames = {"R", "V", "P", "S(tokens)", "S(channels)"};
  return kNames.at(static_cast<std::size_t>(type));
}

std::vector<TypeAxis> type_axes(const ModelSpec& model) {
  std::vector<TypeAxis> axes = {{"data", std::nullopt, varying, true}};
  for (std::size_t i = 0; i < kBlockAxes; ++i) {
    const auto axis = static_cast<BlockAxis>(i);
    const bool whole_rows = axis == BlockAxis::tensor;
    if (model.degrees.at(i) > 1)
      axes.push_back({axis_name(axis), axis, whole_rows ? replicated : tokens, !whole_rows});
  }
  return axes;
}

std::vector<CallTypes> value_types(const ModelSpec& model, const BlockSpec& block, const TypeAxis& axis) {
  return BlockTypes(model, block, axis).infer();
}

namespace {

/// A gradient is checked where a call names its parameter.
void check_all_named(const ModelSpec& model) {
  std::set<std::string> named;
  for (const BlockSpec& block : model.blocks)
    for (const RegionSpec& region : block.regions)
      for (const CallSpec& call : region.calls) named.insert(call.weights.begin(), call.weights.end());
  for (const UnitSpec& unit : model.units) {
    for (const ParameterSpec& parameter : unit.parameters) {
      if (unit.trainable && !named.contains(parameter.name))
        throw ValueTypeError(format("{}: no call of the model's specification uses it", parameter.name));
    }
  }
}

}  // namespace

void check_value_types(const ModelSpec& model) {
  const std::vector<TypeAxis> axes = type_axes(model);
  for (const BlockSpec& block : model.blocks) {
    for (std::size_t i = 0; i < kBlockAxes; ++i)
      if (model.degrees.at(i) == 1 && block.exchanges_over(static_cast<BlockAxis>(i)))
        throw ValueTypeError(format("{}: exchanges over an axis of one rank", block.name));
    for (const TypeAxis& axis : axes) value_types(model, block, axis);
  }
  check_all_named(model);
}

}  // namespace stepforge
