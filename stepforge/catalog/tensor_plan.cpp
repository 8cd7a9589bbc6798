// SPDX-License-Identifier: Apache-2.0
#include "stepforge/catalog/tensor_plan.h"

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

namespace {

/// Of all models, as in Megatron-LM; what is not named is replicated. Names end with these.
constexpr std::array<std::pair<std::string_view, TensorStyle>, 8> kDecoderPlan = {
    {{"embedding.weight", TensorStyle::rowwise},
     {".attention.qkv", TensorStyle::colwise},
     {".attention.qkv_bias", TensorStyle::colwise},
     {".attention.sinks", TensorStyle::colwise},
     {".attention.out", TensorStyle::rowwise},
     {".mlp.gate_up", TensorStyle::colwise},
     {".mlp.down", TensorStyle::rowwise},
     {"head.weight", TensorStyle::colwise}}};

TensorStyle usual_style(std::string_view parameter) {
  for (const auto& [ending, style] : kDecoderPlan)
    if (parameter.ends_with(ending)) return style;
  return TensorStyle::replicate;
}

NamePattern compiled(const std::string& pattern, const std::string& source) {
  try {
    return NamePattern(pattern);
  } catch (const FormatError& error) {
    throw UsageError(format("{}: pattern \"{}\": {}", source, pattern, error.what()));
  }
}

}  // namespace

TensorPlan::TensorPlan(const std::vector<TensorPlanRule>& rules, const std::vector<TensorPlanRule>& further,
                       std::string further_name)
    : rules_(rules), first_further_(rules.size()) {
  names_[1] = std::move(further_name);
  rules_.insert(rules_.end(), further.begin(), further.end());
  for (const TensorPlanRule& rule : rules_)
    patterns_.push_back(compiled(rule.pattern, source_of(static_cast<int>(patterns_.size()))));
}

const std::string& TensorPlan::source_of(int rule) const {
  return names_[rule >= static_cast<int>(first_further_) ? 1 : 0];
}

int TensorPlan::rule_of(std::string_view parameter) const {
  for (std::size_t i = 0; i < rules_.size(); ++i)
    if (patterns_[i].matches(parameter)) return static_cast<int>(i);
  return -1;
}

TensorStyle TensorPlan::style_of(std::string_view parameter) const {
  const int rule = rule_of(parameter);
  return rule >= 0 ? rules_[static_cast<std::size_t>(rule)].style : usual_style(parameter);
}

TensorParallel TensorPlan::of_layer(TensorParallel tensor, const std::vector<std::string>& parameters) const {
  std::set<bool> replicated;
  int rule = -1;
  for (const std::string& parameter : parameters) {
    const TensorStyle style = style_of(parameter);
    if (style != TensorStyle::replicate && style != usual_style(parameter)) {
      throw UsageError(format("{}: {} cannot be {}; it can be {} or replicate", source_of(rule_of(parameter)),
                              parameter, style_name(style), style_name(usual_style(parameter))));
    }
    replicated.insert(style == TensorStyle::replicate);
    rule = std::max(rule, rule_of(parameter));
  }
  if (replicated.size() > 1) {
    throw UsageError(
        format("{}: {} form one layer, but only some of them are replicated; "
               "a pattern must match all of them or none",
               source_of(rule), join(parameters, " and ")));
  }
  tensor.divided = !replicated.contains(true);
  return tensor;
}

void TensorPlan::check_rules(const ModelSpec& model) const {
  if (rules_.empty()) return;
  std::set<int> followed;
  for (const UnitSpec& unit : model.units) {
    for (const ParameterSpec& parameter : unit.parameters) {
      const int rule = rule_of(parameter.name);
      followed.insert(rule);
      if (rule < 0 || parameter.tag != ParameterTag::norm) continue;
      if (rules_[static_cast<std::size_t>(rule)].style == TensorStyle::replicate) continue;
      throw UsageError(format("{}: the norm {} cannot be {}; every rank has all of it", source_of(rule),
                              parameter.name, style_name(rules_[static_cast<std::size_t>(rule)].style)));
    }
  }
  for (std::size_t i = 0; i < first_further_; ++i) {
    if (followed.contains(static_cast<int>(i))) continue;
    throw UsageError(format(
        "parallelism.tensor_parallel_plan: pattern \"{}\" matches no parameter, or only parameters that "
        "earlier rules match; names are like \"{}\" (stepforge plan --layout lists them)",
        rules_[i].pattern, model.units.back().parameters.front().name));
  }
}

std::string_view style_name(TensorStyle style) {
  return choice_name(style);
}

}  // namespace stepforge
