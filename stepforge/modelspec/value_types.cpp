// SPDX-License-Identifier: Apache-2.0
#include "stepforge/modelspec/value_types.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "stepforge/base/format.h"
#include "stepforge/modelspec/type_rules.h"

namespace stepforge {

namespace {

using enum ValueType;

/// Infers the types of one block on one axis.
class BlockTypes {
 public:
  BlockTypes(const ModelSpec& model, const BlockSpec& block, const TypeAxis& axis)
      : place_{model, block, axis} {}

  std::vector<CallTypes> infer() {
    forward();
    backward();
    check_weights();
    std::vector<CallTypes> types;
    for (const TypedCall& typed : calls_) types.push_back(typed.types);
    return types;
  }

 private:
  /// A value between calls.
  struct Value {
    std::optional<ValueType> type = {};      ///< nothing for indices
    std::optional<ValueType> gradient = {};  ///< nothing until a call has contributed to it
  };

  struct TypedCall {
    CallTypes types;
    std::vector<int> operands;
    int result = -1;
  };

  int add_value(std::optional<ValueType> type) {
    values_.push_back({type});
    return static_cast<int>(values_.size()) - 1;
  }
  Value& at(int value) { return values_[static_cast<std::size_t>(value)]; }

  /// Of the values that a block takes or makes, which all have one type.
  ValueType passed(const std::vector<BundleEntry>& bundle) const {
    const auto differs = [&](const BundleEntry& entry) { return entry.slice != bundle.front().slice; };
    if (const auto other = std::ranges::find_if(bundle, differs); other != bundle.end()) {
      place_.fail(
          format("of the values that pass, only one of {} and {} is divided into slices of the tokens",
                 bundle.front().name, other->name));
    }
    if (place_.axis.axis == BlockAxis::experts && is_dispatched(bundle)) return channels;
    if (place_.axis.axis != BlockAxis::tensor) return place_.axis.tokens;
    return !bundle.empty() && bundle.front().slice ? tokens : replicated;
  }

  /// Whether these are rows that ranks have sent for the experts of this one.
  bool is_dispatched(const std::vector<BundleEntry>& bundle) const {
    const auto sent = std::ranges::count_if(bundle, [](const BundleEntry& e) { return e.dispatched > 0; });
    if (sent != 0 && sent != std::ssize(bundle))
      place_.fail("of the values that pass, only some are rows that are dispatched to experts");
    return sent > 0;
  }

  /// Of each token [N, D] rows [R, D] with their weights and experts, and of their results a sum for each token.
  void check_dispatch() const {
    const BlockSpec& block = place_.block;
    if (!block.dispatch) {
      if (is_dispatched(block.inputs)) place_.fail("takes rows for experts, but none are dispatched to it");
      return;
    }
    const auto& sent = block.dispatch->sent;
    const auto& returned = block.dispatch->returned;
    constexpr std::size_t kSent = 3;  // tokens, weights, experts
    if (place_.model.degrees.at(static_cast<std::size_t>(BlockAxis::experts)) == 1)
      place_.fail("rows are dispatched to experts that one rank has");
    if (is_dispatched(sent) || is_dispatched(returned))
      place_.fail("rows that are dispatched are sent or returned once more");
    if (!is_dispatched(block.inputs) || !is_dispatched(block.outputs))
      place_.fail("rows are dispatched to it, but it takes or makes values of tokens");
    if (sent.size() != kSent || block.inputs.size() != kSent || block.outputs.size() != 1 ||
        returned.size() != 1)
      place_.fail("tokens, weights and experts are dispatched, and results combined");
    const bool fits = sent[0].width == block.inputs[0].width && sent[1].width == sent[2].width &&
                      block.inputs[1].width == 1 && block.inputs[2].width == 1 &&
                      block.outputs[0].width == returned[0].width;
    place_.require(fits, "the widths of dispatched rows are not those of tokens, weights and results");
    for (const auto& entries : {sent, block.inputs, block.outputs, returned})
      for (const BundleEntry& entry : entries)
        place_.require(entry.slice == sent[0].slice,
                       "of what is dispatched and returned, only some is of slices of the tokens");
    for (std::size_t i = 0; i < kSent; ++i)
      place_.require(sent[i].dtype == block.inputs[i].dtype,
                     "the types of dispatched rows are not those of tokens, weights and experts");
  }

  void forward() {
    const BlockSpec& block = place_.block;
    check_dispatch();
    for (std::size_t i = 0; i < block.inputs.size(); ++i) inputs_.push_back(add_value(passed(block.inputs)));
    std::vector<int> passing = inputs_;
    for (const RegionSpec& region : block.regions) {
      place_.region = &region;
      passing = region.list.empty() ? chain(region, passing) : listed(region, passing);
      place_.call = nullptr;
    }
    place_.region = nullptr;
    outputs_ = passing;
    for (const int value : outputs_) {
      const std::optional<ValueType> type = at(value).type;
      if (!type) continue;
      if (!block.outputs.empty())
        place_.require_type(*type, passed(block.outputs), "what passes to the next block");
      else
        place_.require_type(*type, place_.axis.summed_by_step ? partial : replicated, "the loss");
    }
  }

  /// The calls of a region, each of which takes what the one before it makes.
  std::vector<int> chain(const RegionSpec& region, const std::vector<int>& passing) {
    const int into = passing.empty() ? add_value(place_.axis.tokens) : passing.front();
    int last = into;
    for (const CallSpec& call : region.calls)
      if (call.rule != TypeRule::memory) last = infer(call, {last});
    place_.call = nullptr;
    if (region.residual)
      place_.require_type(*at(last).type, *at(into).type, "the result that is added to its input");
    return {last};
  }

  /// Those of a list, whose inputs are `passing`.
  std::vector<int> listed(const RegionSpec& region, const std::vector<int>& passing) {
    std::map<int, int> numbers;  // of the list's values
    for (std::size_t i = 0; i < region.list.inputs.size(); ++i)
      numbers[region.list.inputs[i]] = passing.at(i);
    for (const CallSpec& call : region.calls) {
      place_.call = &call;
      std::vector<int> operands;
      for (const int operand : call.operands) {
        const auto known = numbers.find(operand);
        if (known == numbers.end()) place_.fail("takes a value that no call makes");
        operands.push_back(known->second);
      }
      const int made = infer(call, std::move(operands));
      for (const int result : call.results) numbers[result] = made;
    }
    std::vector<int> outputs;
    for (const int output : region.list.outputs) {
      const auto known = numbers.find(output);
      outputs.push_back(known != numbers.end() ? known->second : add_value({}));
    }
    return outputs;
  }

  /// Returns the number of the call's result.
  int infer(const CallSpec& call, std::vector<int> operands) {
    place_.call = &call;
    if (operands.empty()) operands.push_back(add_value(place_.axis.tokens));  // the tokens of the batch
    const ValueType input = *at(operands.front()).type;
    for (const int operand : operands)
      place_.require_type(*at(operand).type, input, "what is combined with its first input");
    const ValueType type = result_type(place_, input);
    const int result = add_value(type);
    calls_.push_back({{place_.region, &call, type, type}, std::move(operands), result});
    return result;
  }

  void backward() {
    // Of the loss the gradient is 1 on every rank; of what passes between blocks it is complete.
    for (const int output : outputs_) {
      Value& value = at(output);
      if (value.type) value.gradient = *value.type == partial ? replicated : *value.type;
    }
    for (auto typed = calls_.rbegin(); typed != calls_.rend(); ++typed) differentiate(*typed);
    check_residuals();
    place_.region = nullptr;
    place_.call = nullptr;
    for (const int input : inputs_)
      if (at(input).gradient)
        place_.require_type(*at(input).gradient, passed(place_.block.inputs), "the gradient of its input");
  }

  void differentiate(TypedCall& typed) {
    place_.region = typed.types.region;
    place_.call = typed.types.call;
    const std::optional<ValueType> gradient = at(typed.result).gradient;
    if (!gradient) return;
    typed.types.gradient = *gradient;
    const ValueType input = *at(typed.operands.front()).type;
    const ValueType made = input_gradient_type(place_, input, *gradient, weights_);
    check_gradient(input, made);
    for (const int operand : typed.operands) contribute(at(operand), made);
  }

  /// Where a value is used more than once the gradients are added.
  void contribute(Value& value, ValueType gradient) const {
    if (value.gradient && *value.gradient != gradient)
      place_.fail(
          format("the gradient of its input is {}, and that of its other use {}: they cannot be added",
                 type_name(gradient), type_name(*value.gradient)));
    value.gradient = gradient;
  }

  /// The gradient of a region's result is added to that of its input.
  void check_residuals() {
    for (const RegionSpec& region : place_.block.regions) {
      if (!region.residual || !region.list.empty()) continue;
      const auto of_region = [&](const TypedCall& typed) { return typed.types.region == &region; };
      const auto first = std::ranges::find_if(calls_, of_region);
      const auto last = std::find_if(calls_.rbegin(), calls_.rend(), of_region);
      if (first == calls_.end()) continue;
      place_.region = &region;
      place_.call = nullptr;
      const ValueType gradient = *at(first->operands.front()).gradient;
      const ValueType into = *at(last->result).gradient;
      if (gradient != into)
        place_.fail(
            format("the gradient of its input is {}, and that of the residual {}: they cannot be added",
                   type_name(gradient), type_name(into)));
    }
  }

  void check_gradient(ValueType value, ValueType gradient) const {
    const bool fits = value == partial ? gradient == replicated
                                       : gradient == value || (value == replicated && gradient == partial);
    if (fits) return;
    place_.fail(
        format("the gradient of its input, which is {}, is {}", type_name(value), type_name(gradient)));
  }

  void check_weights() const {
    for (const int index : place_.block.units) {
      const UnitSpec& unit = place_.model.units.at(static_cast<std::size_t>(index));
      if (!unit.trainable) continue;
      for (const ParameterSpec& parameter : unit.parameters) {
        const auto found = weights_.find(parameter.name);
        if (found != weights_.end()) check_weight(unit, parameter.name, found->second);
      }
    }
  }

  void check_weight(const UnitSpec& unit, const std::string& name, ValueType type) const {
    if (place_.axis.axis == BlockAxis::experts && unit.mesh == UnitMesh::experts)
      return place_.require_type(type, channels, format("the gradient of {}", name));
    const bool summed_by_step = place_.axis.summed_by_step || unit.mesh != UnitMesh::rows;
    if (summed_by_step == (type == partial)) return;
    if (summed_by_step)
      place_.require_type(type, partial, format("the gradient of {}, which the step sums,", name));
    place_.fail(format("the gradient of {} is a partial sum (P) that nothing sums", name));
  }

  TypePlace place_;
  std::vector<Value> values_;
  std::vector<int> inputs_;
  std::vector<int> outputs_;
  std::vector<TypedCall> calls_;
  WeightTypes weights_;
};

}  // namespace

std::string_view type_name(ValueType type) {
  constexpr std::array<std::string_view, 5> kNames = {"R", "V", "P", "S(tokens)", "S(channels)"};
  return kNames.at(static_cast<std::size_t>(type));
}

namespace {

/// The type of the tokens of a micro-batch.
ValueType tokens_over(BlockAxis axis) {
  switch (axis) {
    case BlockAxis::tensor:
      return replicated;
    case BlockAxis::experts:
      return varying;
    default:
      return tokens;
  }
}

}  // namespace

std::vector<TypeAxis> type_axes(const ModelSpec& model) {
  std::vector<TypeAxis> axes = {{"data", std::nullopt, varying, true}};
  for (std::size_t i = 0; i < kBlockAxes; ++i) {
    const auto axis = static_cast<BlockAxis>(i);
    if (model.degrees.at(i) > 1)
      axes.push_back({axis_name(axis), axis, tokens_over(axis), axis != BlockAxis::tensor});
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
