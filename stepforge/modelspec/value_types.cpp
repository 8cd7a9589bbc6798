// SPDX-License-Identifier: Apache-2.0
#include "stepforge/modelspec/value_types.h"

#include <algorithm>
#include <array>
#include <set>

#include "stepforge/base/format.h"
#include "stepforge/modelspec/type_rules.h"

namespace stepforge {

namespace {

using enum ValueType;

/// Infers the types of one block on one axis.
class BlockTypes {
 public:
  BlockTypes(const ModelSpec& model, const BlockSpec& block, std::span<const CallInfo> infos,
             const TypeAxis& axis)
      : infos_(infos), place_{model, block, axis} {}

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
    infer_list();
    place_.go_to(nullptr);
    for (const int value : outputs_) {
      const std::optional<ValueType> type = at(value).type;
      if (!type) continue;
      if (!block.outputs.empty())
        place_.require_type(*type, passed(block.outputs), "what passes to the next block");
      else
        place_.require_type(*type, place_.axis.summed_by_step ? partial : replicated, "the loss");
    }
  }

  void infer_list() {
    const CallList& list = place_.block.list;
    place_.require(list.inputs.size() == inputs_.size(),
                   "its list of calls does not take what the block takes");
    place_.require(list.outputs.size() == std::max<std::size_t>(1, place_.block.outputs.size()),
                   "its list of calls does not make what the block makes, or a loss");
    std::vector<int> numbers(list.values.size(), -1);  // of its values
    const auto number = [&](int value) -> int& { return numbers[static_cast<std::size_t>(value)]; };
    for (std::size_t i = 0; i < list.inputs.size(); ++i) number(list.inputs[i]) = inputs_[i];
    for (const CallInfo& info : infos_) {
      const auto is_index = [](const LayerValue& value) { return value.type == ElementType::int32; };
      if (std::ranges::all_of(info.results, is_index)) continue;  // indices have no type
      place_.go_to(&info);
      std::vector<int> operands;
      for (std::size_t i = 0; i < info.operands.size(); ++i) {
        if (is_index(info.operands[i])) continue;
        operands.push_back(number(info.call->operands[i]));
        if (operands.back() < 0) place_.fail("takes a value that no call makes");
      }
      const int made = infer(std::move(operands));
      for (std::size_t i = 0; i < info.results.size(); ++i)
        if (!is_index(info.results[i])) number(info.call->results[i]) = made;
    }
    for (const int output : list.outputs)
      outputs_.push_back(number(output) >= 0 ? number(output) : add_value({}));
  }

  /// Whether the call adds its result to its second operand, instead of combining its operands.
  bool adds_result() const { return place_.rule() == TypeRule::linear_add; }

  /// Returns the number of the call's result.
  int infer(std::vector<int> operands) {
    if (operands.empty()) operands.push_back(add_value(place_.axis.tokens));  // the tokens of the batch
    const ValueType input = *at(operands.front()).type;
    const auto require_others = [&](ValueType type) {
      for (const int operand : std::span(operands).subspan(1))
        place_.require_type(*at(operand).type, type, "what is combined with its first input");
    };
    if (!adds_result()) require_others(input);
    const ValueType type = result_type(place_, input);
    if (adds_result()) require_others(type);
    const int result = add_value(type);
    calls_.push_back({{place_.call, type, type}, std::move(operands), result});
    return result;
  }

  void backward() {
    // Of the loss the gradient is 1 on every rank; of what passes between blocks it is complete.
    for (const int output : outputs_) {
      Value& value = at(output);
      if (value.type) value.gradient = *value.type == partial ? replicated : *value.type;
    }
    for (auto typed = calls_.rbegin(); typed != calls_.rend(); ++typed) differentiate(*typed);
    place_.go_to(nullptr);
    for (const int input : inputs_)
      if (at(input).gradient)
        place_.require_type(*at(input).gradient, passed(place_.block.inputs), "the gradient of its input");
  }

  void differentiate(TypedCall& typed) {
    place_.go_to(typed.types.call);
    const std::optional<ValueType> gradient = at(typed.result).gradient;
    if (!gradient) return;
    typed.types.gradient = *gradient;
    const ValueType input = *at(typed.operands.front()).type;
    const ValueType made = input_gradient_type(place_, input, *gradient, weights_);
    check_gradient(input, made);
    contribute(at(typed.operands.front()), made);
    for (const int operand : std::span(typed.operands).subspan(1))
      contribute(at(operand), adds_result() ? *gradient : made);
  }

  /// Where a value is used more than once the gradients are added.
  void contribute(Value& value, ValueType gradient) const {
    if (value.gradient && *value.gradient != gradient)
      place_.fail(
          format("the gradient of its input is {}, and that of its other use {}: they cannot be added",
                 type_name(gradient), type_name(*value.gradient)));
    value.gradient = gradient;
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

  std::span<const CallInfo> infos_;
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

std::vector<CallTypes> value_types(const ModelSpec& model, const BlockSpec& block,
                                   std::span<const CallInfo> calls, const TypeAxis& axis) {
  return BlockTypes(model, block, calls, axis).infer();
}

namespace {

/// A gradient is checked where a call names its parameter.
void check_all_named(const ModelSpec& model) {
  std::set<std::string> named;
  for (const BlockSpec& block : model.blocks)
    for (const Call& call : block.list.calls)
      for (const CallWeight& weight : call.weights) named.insert(weight.name);
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
    const auto exchanged = block.exchanged_axes();
    for (std::size_t i = 0; i < kBlockAxes; ++i)
      if (model.degrees.at(i) == 1 && exchanged.at(i))
        throw ValueTypeError(format("{}: exchanges over an axis of one rank", block.name));
    const std::vector<CallInfo> calls = call_infos(block.list);
    for (const TypeAxis& axis : axes) value_types(model, block, calls, axis);
  }
  check_all_named(model);
}

}  // namespace stepforge
