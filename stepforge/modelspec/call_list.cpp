// SPDX-License-Identifier: Apache-2.0
#include "stepforge/modelspec/call_list.h"

#include <algorithm>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/modelspec/call_kind.h"

namespace stepforge {

int64_t CallWeight::elements() const {
  int64_t product = 1;
  for (const int64_t extent : shape) product *= extent;
  return product;
}

CallWeight call_weight(const ParameterSpec& parameter) {
  return {parameter.name, parameter.shape, parameter.division()};
}

CallWeight constant_weight(CallWeight weight) {
  weight.constant = true;
  weight.trained = false;
  return weight;
}

bool Call::trains() const {
  return std::ranges::any_of(weights, &CallWeight::trained);
}

std::string Call::full_name() const {
  return format("{}.{}", region, name);
}

std::vector<LayerValue> CallList::values_of(std::span<const int> indices) const {
  std::vector<LayerValue> found;
  found.reserve(indices.size());
  for (const int index : indices) found.push_back(value(index));
  return found;
}

int ListWriter::input(LayerValue value) {
  list_.values.push_back(std::move(value));
  list_.inputs.push_back(static_cast<int>(list_.values.size()) - 1);
  return list_.inputs.back();
}

int append(CallList& list, Call call) {
  call.results.clear();
  const std::vector<LayerValue> operands = list.values_of(call.operands);
  for (LayerValue& made : call.kind->results({call, operands})) {
    made.name = call.results.empty() ? call.name : format("{}.{}", call.name, call.results.size());
    call.results.push_back(static_cast<int>(list.values.size()));
    list.values.push_back(std::move(made));
  }
  list.calls.push_back(std::move(call));
  return list.calls.back().results.front();
}

int ListWriter::call(const CallKind& kind, std::string name, std::vector<int> operands,
                     const std::vector<const ParameterSpec*>& weights, std::any attributes) {
  Call made{.kind = &kind,
            .name = std::move(name),
            .operands = std::move(operands),
            .attributes = std::move(attributes)};
  for (const ParameterSpec* weight : weights) made.weights.push_back(call_weight(*weight));
  return add(std::move(made));
}

int ListWriter::add(Call call) {
  call.region = region_;
  return append(list_, std::move(call));
}

CallList ListWriter::finish(std::vector<int> outputs) {
  list_.outputs = std::move(outputs);
  return std::move(list_);
}

CallList joined(CallList first, const CallList& second) {
  if (first.outputs.size() != second.inputs.size())
    throw Error(format("a list of calls makes {} values, but the next one takes {}", first.outputs.size(),
                       second.inputs.size()));
  std::vector<int> place(second.values.size());  // of each value of `second`
  for (std::size_t i = 0; i < second.values.size(); ++i) {
    const auto input = std::ranges::find(second.inputs, static_cast<int>(i));
    if (input != second.inputs.end()) {
      place[i] = first.outputs[static_cast<std::size_t>(input - second.inputs.begin())];
    } else {
      place[i] = static_cast<int>(first.values.size());
      first.values.push_back(second.values[i]);
    }
  }
  const auto moved = [&](std::vector<int> values) {
    for (int& value : values) value = place[static_cast<std::size_t>(value)];
    return values;
  };
  for (Call call : second.calls) {
    call.operands = moved(std::move(call.operands));
    call.results = moved(std::move(call.results));
    first.calls.push_back(std::move(call));
  }
  first.outputs = moved(second.outputs);
  return first;
}

std::string text_of(const CallList& list, const Call& call) {
  std::string taken;
  for (const int operand : call.operands) taken += (taken.empty() ? "" : ", ") + list.value(operand).name;
  for (std::size_t i = 0; i < call.weights.size(); ++i)
    taken += (i == 0 ? "; " : ", ") + call.weights[i].name;
  return format("{} = {}({})", call.name, call.kind->name, taken);
}

}  // namespace stepforge
