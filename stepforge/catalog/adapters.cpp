// SPDX-License-Identifier: Apache-2.0
#include "stepforge/catalog/adapters.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/catalog/adapter_biases.h"
#include "stepforge/catalog/adapter_writer.h"
#include "stepforge/catalog/frozen_units.h"
#include "stepforge/catalog/module_names.h"
#include "stepforge/modelspec/calls/linear.h"
#include "stepforge/modelspec/calls/lookup.h"
#include "stepforge/modelspec/calls/loss.h"

namespace stepforge {

namespace {

bool may_have_adapters(const BlockSpec& block, const AdapterChoice& choice) {
  if (block.kind == BlockKind::layer) return choice.has_layer(block.layer);
  return (block.kind == BlockKind::embedding || block.kind == BlockKind::head) && choice.has_others();
}

/// That of a parameter, by which `call` multiplies or in which it looks up.
std::optional<Adapter> adapter_beside(const Call& call, const ParameterSpec& parameter, const UnitSpec& unit,
                                      AdapterChoice& choice, const AdapterConfig& adapter) {
  if (call.is(kLinear)) return adapter_of(parameter, unit, choice, adapter);
  if (call.is(kLookup)) return embedding_adapter_of(parameter, unit, choice, adapter);
  if (call.is(kLoss)) return head_adapter_of(parameter, unit, choice, adapter);
  return expert_adapter_of(parameter, attributes_of<ExpertsAttributes>(call), choice, adapter);
}

/// The adapters of the matrices that the layers multiply by, of the embedding and of the head.
Adapters choose_adapters(const ModelSpec& model, AdapterChoice& choice, const AdapterConfig& adapter) {
  Adapters adapters;
  for (const BlockSpec& block : model.blocks) {
    if (!may_have_adapters(block, choice)) continue;
    for (const int index : block.units) {
      const UnitSpec& unit = model.units.at(static_cast<size_t>(index));
      for (const ParameterSpec& parameter : unit.parameters) {
        const auto found = std::ranges::find_if(block.list.calls, [&](const Call& call) {
          return !adapted_name(call).empty() && call.weights.front().name == parameter.name;
        });
        if (found == block.list.calls.end()) continue;
        if (auto made = adapter_beside(*found, parameter, unit, choice, adapter))
          adapters.emplace(adapted_name(*found), std::move(*made));
      }
    }
  }
  return adapters;
}

/// Throws UsageError for options that an adapter of the embedding does not read, if there is no other one.
void refuse_of_embedding_only(const Adapters& adapters, const AdapterConfig& adapter) {
  const auto of_embedding = [](const auto& named) { return named.second.a.tag == ParameterTag::embedding; };
  if (!std::ranges::all_of(adapters, of_embedding)) return;
  const auto refuse = [](bool set, const char* option) {
    if (!set) return;
    throw UsageError(format(
        "adapter.{} is set, but only the embedding has an adapter, which does not use it; remove it, or "
        "name other modules in adapter.targets too",
        option));
  };
  refuse(adapter.dropout > 0, "dropout");
  refuse(adapter.b_lr_ratio != 1, "b_lr_ratio");
  refuse(adapter.init != AdapterInit::kaiming, "init");
}

/// Throws UsageError for an option of adapters of experts, if there are none.
void refuse_without_experts(const Adapters& adapters, const AdapterConfig& adapter) {
  const auto shares = [](const auto& named) { return named.second.shared_a; };
  if (adapter.experts == ExpertAdapters::each || std::ranges::any_of(adapters, shares)) return;
  throw UsageError(
      format("adapter.experts = \"{}\", but adapter.targets names no matrices of experts; name them "
             "(\".*\\\\.experts\\\\..*\"), or remove experts",
             choice_name(adapter.experts)));
}

/// Those of the head are a unit of its blocks: W may be in that of the embedding, which other ranks may have.
void add_head_parameters(ModelSpec& model, const Adapter& adapter) {
  const int index = static_cast<int>(model.units.size());
  model.units.push_back({.name = "head.adapter", .parameters = {adapter.a, adapter.b.front()}});
  for (BlockSpec& block : model.blocks)
    if (std::ranges::any_of(block.list.calls, [](const Call& call) { return call.is(kLoss); }))
      block.units.push_back(index);
}

/// Every rank has those that its experts share with experts of other ranks, and other rows for them: they are a unit beside the
/// one of experts, sharded over all ranks that have other tokens.
void add_shared_parameters(ModelSpec& model, int experts, std::vector<ParameterSpec> shared) {
  if (shared.empty()) return;
  const bool slices = model.degrees.at(static_cast<std::size_t>(BlockAxis::tensor)) > 1;
  const auto index = static_cast<int>(model.units.size());
  model.units.push_back({.name = model.units[static_cast<std::size_t>(experts)].name + ".shared",
                         .parameters = std::move(shared),
                         .mesh = slices ? UnitMesh::slices : UnitMesh::rows});
  for (BlockSpec& block : model.blocks)
    if (std::ranges::count(block.units, experts) > 0) block.units.push_back(index);
}

/// Puts A and B behind the parameters of the unit that has W.
void add_parameters(ModelSpec& model, const Adapters& adapters) {
  if (const auto head = adapters.find(kAdaptedHead); head != adapters.end())
    add_head_parameters(model, head->second);
  const auto units = static_cast<int>(model.units.size());
  for (int u = 0; u < units; ++u) {
    UnitSpec& unit = model.units[static_cast<std::size_t>(u)];
    const std::vector<ParameterSpec> base = unit.parameters;
    std::vector<ParameterSpec> shared;
    for (const ParameterSpec& parameter : base) {
      const auto found = adapters.find(parameter.name);
      if (found == adapters.end() || parameter.name == kAdaptedHead) continue;
      const Adapter& adapter = found->second;
      const bool beside_experts = adapter.shared_a && unit.mesh == UnitMesh::experts;
      (beside_experts ? shared : unit.parameters).push_back(adapter.a);
      std::ranges::copy(adapter.b, std::back_inserter(unit.parameters));
      std::ranges::copy(adapter.magnitudes, std::back_inserter(unit.parameters));
      std::ranges::copy(adapter.copies, std::back_inserter(model.copies));
    }
    add_shared_parameters(model, u, std::move(shared));
  }
}

/// Whether all tensors of a parameter are trained too. Throws UsageError if some are.
bool is_also_trained(const ParameterSpec& parameter, ModuleNames& names) {
  const SubTensor* trained = nullptr;
  const SubTensor* frozen = nullptr;
  for (const SubTensor& tensor : parameter.sub_tensors)
    (names.find(module_of(tensor.hf_name)) >= 0 ? trained : frozen) = &tensor;
  if (trained != nullptr && frozen != nullptr) {
    throw UsageError(format(
        "adapter.also_train names {} but not {}: both are part of the parameter {}, which is trained as a "
        "whole; name all of its modules, or none",
        module_of(trained->hf_name), module_of(frozen->hf_name), parameter.name));
  }
  return trained != nullptr;
}

/// Whether a call by this weight has an adapter beside it: one of lookup and head, if they are tied.
bool has_adapter(const ModelSpec& model, const ParameterSpec& weight, const Adapters& adapters) {
  return std::ranges::any_of(model.blocks, [&](const BlockSpec& block) {
    return std::ranges::any_of(block.list.calls, [&](const Call& call) {
      return adapters.contains(adapted_name(call)) && call.weights.front().name == weight.name;
    });
  });
}

/// Throws UsageError if adapter.bias trains nothing, unless a folder says it, whose model had none either.
void refuse_without_biases(const ModelSpec& model, const TrainedBiases& biases,
                           const AdapterConfig& adapter) {
  if (adapter.bias == AdapterBias::none || !adapter.from.empty()) return;
  for (const UnitSpec& unit : model.units)
    for (const ParameterSpec& parameter : unit.parameters)
      for (const SubTensor& tensor : parameter.sub_tensors)
        if (biases.contains(tensor.hf_name)) return;
  throw UsageError(format(
      "adapter.bias = \"{}\", but {}; remove it", choice_name(adapter.bias),
      adapter.bias == AdapterBias::all ? "the model has no biases" : "no module with an adapter has a bias"));
}

void freeze_base(ModelSpec& model, const Adapters& adapters, const AdapterConfig& adapter,
                 const TrainedBiases& biases, const WeightStorage& frozen) {
  ModuleNames also_train("adapter.also_train", adapter.also_train);
  std::vector<std::string> modules;
  freeze_if(
      model,
      [&](const std::string&, const std::string&, const ParameterSpec& parameter) {
        const std::string& tensor = parameter.sub_tensors.front().hf_name;
        if (is_adapter_tensor(tensor)) return false;
        modules.emplace_back(module_of(tensor));
        const bool named = is_also_trained(parameter, also_train);
        if (named && has_adapter(model, parameter, adapters))
          throw UsageError(format(
              "adapter.also_train names {}, which has an adapter: leave it out there, or in adapter.targets",
              module_of(tensor)));
        return !named && !biases.contains(tensor) && parameter.tag != ParameterTag::score;
      },
      frozen);
  also_train.require_found(modules);
}

}  // namespace

void add_adapters(ModelSpec& model, const AdapterConfig& adapter, const WeightStorage& frozen) {
  if (!adapter.enabled()) return;
  AdapterChoice choice(adapter);
  const Adapters adapters = choose_adapters(model, choice, adapter);
  choice.require_found(model.layers);
  refuse_of_embedding_only(adapters, adapter);
  refuse_without_experts(adapters, adapter);
  for (BlockSpec& block : model.blocks)
    for (CallList* list : {&block.list, &block.generation})
      *list = write_adapters(*list, adapters, adapter.dropout > 0);
  add_parameters(model, adapters);
  const TrainedBiases biases(adapter.bias, model);
  refuse_without_biases(model, biases, adapter);
  split_biases(model, biases);
  freeze_base(model, adapters, adapter, biases, frozen);
}

}  // namespace stepforge
