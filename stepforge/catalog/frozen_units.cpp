// SPDX-License-Identifier: Apache-2.0
#include "stepforge/catalog/frozen_units.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/config/name_pattern.h"

namespace stepforge {

namespace {

/// The patterns of model.freeze, and which of them have matched.
class FreezePatterns {
 public:
  explicit FreezePatterns(std::span<const std::string> texts) {
    for (const std::string& text : texts) {
      try {
        patterns_.push_back({text, NamePattern("^(?:" + text + ")$")});
      } catch (const FormatError& fault) {
        throw UsageError(format("model.freeze: \"{}\" is {}", text, fault.what()));
      }
    }
  }

  /// By its own name, that of its unit or layer, or those of all its tensors.
  bool freeze(const std::string& unit, const std::string& layer, const ParameterSpec& parameter) {
    const bool of_unit = match(unit);
    const bool of_layer = match(layer);
    const bool of_parameter = match(parameter.name);
    const SubTensor* frozen = nullptr;
    const SubTensor* trained = nullptr;
    for (const SubTensor& tensor : parameter.sub_tensors)
      (match(tensor.hf_name) ? frozen : trained) = &tensor;
    if (of_unit || of_layer || of_parameter) return true;
    if (frozen != nullptr && trained != nullptr) {
      throw UsageError(
          format("model.freeze freezes {} but not {}: both are part of the parameter {}, which is trained or "
                 "frozen as a whole; freeze that, or none of its tensors",
                 frozen->hf_name, trained->hf_name, parameter.name));
    }
    return frozen != nullptr;
  }

  /// The first that has matched nothing, or null.
  const std::string* find_unused() const {
    const auto unused = std::ranges::find(patterns_, false, &Pattern::used);
    return unused == patterns_.end() ? nullptr : &unused->text;
  }

 private:
  struct Pattern {
    std::string text;
    NamePattern whole;
    bool used = false;
  };

  /// All patterns are tried, so that each that matches counts as used.
  bool match(const std::string& name) {
    bool found = false;
    for (Pattern& pattern : patterns_) {
      if (!pattern.whole.matches(name)) continue;
      found = pattern.used = true;
    }
    return found;
  }

  std::vector<Pattern> patterns_;
};

/// Of each unit the name of its layer, or its own. The units of a layer depend on the layout: experts that are spread over
/// ranks have one of their own, and what takes slices of the tokens.
std::vector<std::string> layers_of(const ModelSpec& model) {
  std::vector<std::string> names;
  for (const UnitSpec& unit : model.units) names.push_back(unit.name);
  std::string layer;
  for (const BlockSpec& block : model.blocks) {
    if (block.kind != BlockKind::layer) continue;
    if (block.begins_layer()) layer = block.name;
    for (const int unit : block.units) names.at(static_cast<size_t>(unit)) = layer;
  }
  return names;
}

/// Whether it is stored as codes: matrices of layers, of whole blocks in each row. Throws UsageError if a rank has parts of them.
bool is_coded(const ParameterSpec& parameter, WeightCode code) {
  if (code == WeightCode::none) return false;
  if (parameter.tag != ParameterTag::matrix || parameter.shape.size() < 2) return false;
  if (parameter.tensor_shape(0).back() % kCodeBlock != 0) return false;
  if (parameter.shape.back() % kCodeBlock == 0) return true;
  throw UsageError(format(
      "model.frozen_dtype = \"{}\": of {} a rank has {} of {} columns, which are no whole blocks of {}; use a "
      "smaller tensor-parallel degree, or bf16",
      kind_of(code).name, parameter.name, parameter.shape.back(), parameter.tensor_shape(0).back(),
      kCodeBlock));
}

/// The parameters of `from` for which `chosen` is true move to a copy of it.
template <typename Chosen>
UnitSpec take_parameters(UnitSpec& from, const Chosen& chosen) {
  UnitSpec taken = from;
  const auto begin =
      std::ranges::stable_partition(from.parameters, [&](const ParameterSpec& p) { return !chosen(p); });
  taken.parameters.assign(begin.begin(), from.parameters.end());
  from.parameters.erase(begin.begin(), from.parameters.end());
  return taken;
}

/// What is trained, read in fp32, frozen, and stored as codes of a unit: itself, or a unit of each.
std::vector<UnitSpec> parts_of(UnitSpec unit, const std::string& layer, const IsFrozen& choose,
                               const WeightStorage& storage) {
  UnitSpec frozen = take_parameters(
      unit, [&](const ParameterSpec& parameter) { return choose(unit.name, layer, parameter); });
  frozen.trainable = false;
  if (!frozen.state) frozen.master = storage.coded() ? DType::bf16 : storage.dtype;
  UnitSpec coded = take_parameters(frozen, [&](const ParameterSpec& parameter) {
    return !frozen.state && is_coded(parameter, storage.code);
  });
  coded.master = DType::u8;
  coded.code = storage.code;
  coded.coded_factors = storage.coded_factors;
  UnitSpec magnitudes = take_parameters(
      unit, [](const ParameterSpec& parameter) { return parameter.tag == ParameterTag::magnitude; });
  magnitudes.fp32 = true;
  std::vector<UnitSpec> parts;
  const auto add = [&](UnitSpec part, const char* suffix) {
    if (part.parameters.empty()) return;
    if (!parts.empty()) part.name += suffix;
    parts.push_back(std::move(part));
  };
  add(std::move(unit), "");
  add(std::move(magnitudes), ".magnitudes");
  add(std::move(frozen), ".frozen");
  add(std::move(coded), ".codes");
  return parts;
}

bool uses(const BlockSpec& block, const UnitSpec& unit) {
  const auto has = [&](const std::string& weight) {
    return std::ranges::find(unit.parameters, weight, &ParameterSpec::name) != unit.parameters.end();
  };
  return std::ranges::any_of(block.list.calls, [&](const Call& call) {
    return std::ranges::any_of(call.weights, has, &CallWeight::name);
  });
}

/// Calls keep nothing for the gradients of weights that are not trained.
void freeze_calls(CallList& list, const std::vector<UnitSpec>& units) {
  const auto is_frozen = [&](const std::string& name) {
    return std::ranges::any_of(units, [&](const UnitSpec& unit) {
      return !unit.trainable &&
             std::ranges::find(unit.parameters, name, &ParameterSpec::name) != unit.parameters.end();
    });
  };
  for (Call& call : list.calls)
    for (CallWeight& weight : call.weights) weight.trained = !weight.constant && !is_frozen(weight.name);
}

void require_matches(const ModelSpec& model, const FreezePatterns& patterns) {
  const std::string* unused = patterns.find_unused();
  if (unused == nullptr) return;
  std::vector<std::string> names;
  for (const UnitSpec& unit : model.units) names.push_back(unit.name);
  const ParameterSpec& parameter = model.units.front().parameters.front();
  throw UsageError(format(
      "model.freeze: \"{}\" matches no unit, no parameter and no tensor of Hugging Face files; the units "
      "are {}; the parameters have names such as {} and {}",
      *unused, join(names, ", "), parameter.name, parameter.sub_tensors.front().hf_name));
}

}  // namespace

void freeze_if(ModelSpec& model, const IsFrozen& is_frozen, const WeightStorage& storage) {
  std::vector<UnitSpec> units;
  std::vector<std::vector<int>> numbers;  // of each unit: those of its parts
  const std::vector<std::string> layers = layers_of(model);
  for (size_t u = 0; u < layers.size(); ++u) {
    std::vector<int>& of_unit = numbers.emplace_back();
    for (UnitSpec& part : parts_of(model.units[u], layers[u], is_frozen, storage)) {
      of_unit.push_back(static_cast<int>(units.size()));
      units.push_back(std::move(part));
    }
  }
  for (BlockSpec& block : model.blocks) {
    std::vector<int> of_block;
    for (const int unit : block.units) {
      const std::vector<int>& parts = numbers.at(static_cast<size_t>(unit));
      // A block may use one part of a unit that it has in common with others.
      for (const int part : parts)
        if (parts.size() == 1 || uses(block, units.at(static_cast<size_t>(part)))) of_block.push_back(part);
    }
    block.units = std::move(of_block);
  }
  model.units = std::move(units);
  for (BlockSpec& block : model.blocks)
    for (CallList* list : {&block.list, &block.generation}) freeze_calls(*list, model.units);
}

void freeze_units(ModelSpec& model, std::span<const std::string> texts, const WeightStorage& storage) {
  if (texts.empty()) return;
  FreezePatterns patterns(texts);
  ModelSpec frozen = model;
  freeze_if(
      frozen,
      [&](const std::string& unit, const std::string& layer, const ParameterSpec& parameter) {
        return patterns.freeze(unit, layer, parameter);
      },
      storage);
  require_matches(model, patterns);
  if (std::ranges::none_of(frozen.units, &UnitSpec::trainable))
    throw UsageError("model.freeze freezes every unit: there is nothing to train; leave out at least one");
  model = std::move(frozen);
}

}  // namespace stepforge
