// SPDX-License-Identifier: Apache-2.0
#include "stepforge/catalog/adapters.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/random.h"
#include "stepforge/catalog/adapter_ranks.h"
#include "stepforge/catalog/frozen_units.h"
#include "stepforge/catalog/module_names.h"
#include "stepforge/modelspec/calls/exchange.h"
#include "stepforge/modelspec/calls/linear.h"
#include "stepforge/modelspec/calls/low_rank.h"
#include "stepforge/modelspec/calls/magnitude.h"
#include "stepforge/modelspec/list_rewriter.h"

namespace stepforge {

namespace {

constexpr std::string_view kAllLinear = "all-linear";

/// The adapter of one parameter.
struct Adapter {
  ParameterSpec a;               ///< [ranks of all parts, columns of W]
  std::vector<ParameterSpec> b;  ///< of each part [rows of its tensor, rank]
  std::vector<ParameterSpec> magnitudes;  ///< of DoRA, of each part [rows of its tensor]
  LowRankAttributes low_rank;
  Division division = Division::whole;  ///< of W
  bool sums = true;  ///< whether blocks sum gradients of weights that are whole on every rank
};

/// Which modules have an adapter.
class AdapterChoice {
 public:
  explicit AdapterChoice(const AdapterConfig& adapter)
      : ranks(adapter),
        adapter_(adapter),
        targets_("adapter.targets", without_all(adapter.targets)),
        all_(std::ranges::find(adapter.targets, kAllLinear) != adapter.targets.end()) {}

  AdapterRanks ranks;

  bool has_layer(int layer) const {
    return adapter_.layers.empty() || std::ranges::find(adapter_.layers, layer) != adapter_.layers.end();
  }
  bool targets(const std::string& module) {
    modules_.push_back(module);
    return targets_.find(module) >= 0 || all_;
  }
  void require_found(int64_t layers) const {
    for (const int64_t layer : adapter_.layers)
      if (layer >= layers)
        throw UsageError(format("adapter.layers: {} is no layer of the model, which has {}", layer, layers));
    if (modules_.empty())
      throw UsageError("adapter.targets: the model has no matrix that can have an adapter in these layers");
    targets_.require_found(modules_);
    ranks.patterns().require_found(modules_);
  }

 private:
  static std::vector<std::string> without_all(std::vector<std::string> texts) {
    std::erase(texts, kAllLinear);
    return texts;
  }

  const AdapterConfig& adapter_;
  ModuleNames targets_;
  bool all_;
  std::vector<std::string> modules_;  ///< that could have one
};

/// The initial values of A: those of PEFT. `columns`: of the whole matrix.
Initializer initial_a(AdapterInit init, int64_t rank, int64_t columns) {
  if (init == AdapterInit::gaussian) return {Initializer::Kind::normal, 1.0 / static_cast<double>(rank)};
  return {Initializer::Kind::uniform, 1.0 / std::sqrt(static_cast<double>(columns))};
}

/// A tensor [rows, columns] of an adapter, of which a rank has what it has of the same rows, or columns, of `base`.
SubTensor adapter_tensor(const std::string& name, const std::string& hf_name, int64_t rows,
                         std::vector<int64_t> whole, std::vector<int64_t> offsets) {
  SubTensor made{name, hf_name, rows, {}};
  if (offsets.empty()) return made;
  made.offsets = std::move(offsets);
  made.tensor_shape = std::move(whole);
  return made;
}

/// Of the tensors of `base` that are chosen; nothing if none is.
std::optional<Adapter> adapter_of(const ParameterSpec& base, const UnitSpec& unit, AdapterChoice& choice,
                                  const AdapterConfig& adapter) {
  Adapter made{.a = {base.name + ".lora_A", {0, base.shape.at(1)}, {}},
               .b = {},
               .magnitudes = {},
               .low_rank = {},
               .division = base.division(),
               .sums = unit.mesh == UnitMesh::rows};
  int64_t row = 0;
  for (size_t i = 0; i < base.sub_tensors.size(); ++i) {
    const SubTensor& tensor = base.sub_tensors[i];
    const int64_t begin = std::exchange(row, row + tensor.rows);
    const std::string module(module_of(tensor.hf_name));
    if (!choice.targets(module)) continue;
    const int64_t rank = choice.ranks.rank(module);
    const std::vector<int64_t> whole = base.tensor_shape(i);
    const std::string hf_name = format("{}{}", kAdapterPrefix, module);
    SubTensor a =
        adapter_tensor(tensor.name, hf_name + ".lora_A.weight", rank, {rank, whole[1]},
                       made.division == Division::columns ? std::vector{int64_t{0}, tensor.offsets[1]}
                                                          : std::vector<int64_t>());
    a.init = initial_a(adapter.init, rank, whole[1]);
    SubTensor b = adapter_tensor("weight", hf_name + ".lora_B.weight", tensor.rows, {whole[0], rank},
                                 made.division == Division::rows ? std::vector{tensor.offsets[0], int64_t{0}}
                                                                 : std::vector<int64_t>());
    made.b.push_back({.name = format("{}.lora_B.{}", base.name, tensor.name),
                      .shape = {tensor.rows, rank},
                      .sub_tensors = {std::move(b)},
                      .lr_factor = adapter.b_lr_ratio});
    if (adapter.type == AdapterType::dora) {
      SubTensor magnitude = adapter_tensor("weight", format("{}{}", hf_name, kMagnitudeSuffix), tensor.rows,
                                           {whole[0]},
                                           made.division == Division::rows ? std::vector{tensor.offsets[0]}
                                                                           : std::vector<int64_t>());
      made.magnitudes.push_back({.name = format("{}.lora_magnitude.{}", base.name, tensor.name),
                                 .shape = {tensor.rows},
                                 .sub_tensors = {std::move(magnitude)},
                                 .tag = ParameterTag::magnitude});
    }
    made.low_rank.parts.push_back({made.a.shape[0], begin, choice.ranks.scale(module)});
    made.a.shape[0] += rank;
    made.a.sub_tensors.push_back(std::move(a));
  }
  if (made.b.empty()) return std::nullopt;
  return made;
}

using Adapters = std::map<std::string, Adapter>;  // by the name of the parameter

/// Adds the calls of adapters to the lists of a block.
class AdapterWriter {
 public:
  AdapterWriter(const CallList& list, const Adapters& adapters, bool dropout)
      : list_(list), adapters_(adapters), dropout_(dropout), rewriter_(list) {}

  CallList write() {
    rewriter_.take_inputs(Rows::tokens);
    for (const Call& call : list_.calls) {
      if (const auto found = adapter_of(call); found != adapters_.end()) {
        add_product(call, found->second);
      } else if (call.is(kExchange) && leaving_ != nullptr && call.operands.front() == left_) {
        add_exchange(call);
      } else {
        rewriter_.replace(call, rewriter_.moved(call));
      }
    }
    return rewriter_.finish();
  }

 private:
  Adapters::const_iterator adapter_of(const Call& call) const {
    return call.is(kLinear) ? adapters_.find(call.weights.front().name) : adapters_.end();
  }

  int add(const Call& beside, const CallKind& kind, const char* name, std::vector<int> operands,
          Call call = {}) {
    call.kind = &kind;
    call.name = beside.name + name;
    call.region = beside.region;
    call.operands = std::move(operands);
    return rewriter_.add(std::move(call));
  }

  /// h = A x, then the product itself, then what B adds to it.
  void add_product(const Call& call, const Adapter& adapter) {
    Call moved = rewriter_.moved(call);
    const LinearAttributes beside = linear_attributes(call);
    int x = moved.operands.front();
    if (beside.gathers_input)
      x = add(call, kExchange, ".enter", {x},
              {.attributes = ExchangeAttributes{ExchangeKind::gather, ExchangeKind::sum_slice},
               .recompute = true});
    if (dropout_)
      x = add(call, kDropout, ".dropout", {x},
              {.attributes = DropoutAttributes{stream_key(0, adapter.a.name)}, .recompute = true});
    int h = add(call, kLinear, ".A", {x},
                {.weights = {call_weight(adapter.a)},
                 .sums_weight_gradients = adapter.sums && adapter.division == Division::rows});
    rewriter_.replace(call, std::move(moved));
    if (beside.scatters_result)
      h = add(call, kExchange, ".leave", {h},
              {.attributes = ExchangeAttributes{ExchangeKind::sum_slice, ExchangeKind::gather}});
    if (adapter.division == Division::columns && !beside.scatters_result) {
      // Both are shares of sums: they leave, and are added afterwards.
      leaving_ = &adapter;
      left_ = call.results.front();
      left_h_ = h;
      return;
    }
    add_low_rank(call, call, adapter, h);
  }

  void add_exchange(const Call& call) {
    Call beside = rewriter_.moved(call);
    beside.operands = {left_h_};
    beside.name += ".A";
    const int h = rewriter_.add(std::move(beside));
    rewriter_.replace(call, rewriter_.moved(call));
    const auto product = std::ranges::find_if(
        list_.calls, [&](const Call& other) { return std::ranges::count(other.results, left_) > 0; });
    add_low_rank(*product, call, *std::exchange(leaving_, nullptr), h);
  }

  /// `made`: the call whose result gets what B adds.
  void add_low_rank(const Call& product, const Call& made, const Adapter& adapter, int h) {
    int& y = rewriter_.place(made.results.front());
    Call call{.attributes = adapter.low_rank,
              .sums_weight_gradients = adapter.sums && rewriter_.value(h).rows == Rows::slice};
    for (const ParameterSpec& b : adapter.b) call.weights.push_back(call_weight(b));
    y = add(product, kLowRank, ".B", {h, y}, std::move(call));
    if (!adapter.magnitudes.empty()) add_magnitude(product, adapter, y);
  }

  void add_magnitude(const Call& product, const Adapter& adapter, int& y) {
    Call call{.attributes = MagnitudeAttributes{adapter.low_rank.parts, adapter.division == Division::columns},
              .sums_weight_gradients = adapter.sums && rewriter_.value(y).rows == Rows::slice};
    for (const ParameterSpec& magnitude : adapter.magnitudes) call.weights.push_back(call_weight(magnitude));
    call.weights.push_back(constant_weight(product.weights.front()));
    call.weights.push_back(constant_weight(call_weight(adapter.a)));
    for (const ParameterSpec& b : adapter.b) call.weights.push_back(constant_weight(call_weight(b)));
    y = add(product, kMagnitude, ".magnitude", {y}, std::move(call));
  }

  const CallList& list_;
  const Adapters& adapters_;
  bool dropout_;
  Rewriter rewriter_;
  const Adapter* leaving_ = nullptr;  ///< of a product whose result is exchanged next
  int left_ = -1;                     ///< this result
  int left_h_ = -1;
};

/// The adapters of the matrices that the layers multiply by.
Adapters choose_adapters(const ModelSpec& model, AdapterChoice& choice, const AdapterConfig& adapter) {
  Adapters adapters;
  for (const BlockSpec& block : model.blocks) {
    if (block.kind != BlockKind::layer || !choice.has_layer(block.layer)) continue;
    for (const int index : block.units) {
      const UnitSpec& unit = model.units.at(static_cast<size_t>(index));
      for (const ParameterSpec& parameter : unit.parameters) {
        const bool multiplied = std::ranges::any_of(block.list.calls, [&](const Call& call) {
          return call.is(kLinear) && call.weights.front().name == parameter.name;
        });
        if (!multiplied) continue;
        if (auto found = adapter_of(parameter, unit, choice, adapter))
          adapters.emplace(parameter.name, std::move(*found));
      }
    }
  }
  return adapters;
}

/// Puts A and B behind the parameters of the unit that has W.
void add_parameters(ModelSpec& model, const Adapters& adapters) {
  for (UnitSpec& unit : model.units) {
    const std::vector<ParameterSpec> base = unit.parameters;
    for (const ParameterSpec& parameter : base) {
      const auto found = adapters.find(parameter.name);
      if (found == adapters.end()) continue;
      unit.parameters.push_back(found->second.a);
      std::ranges::copy(found->second.b, std::back_inserter(unit.parameters));
      std::ranges::copy(found->second.magnitudes, std::back_inserter(unit.parameters));
    }
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

void freeze_base(ModelSpec& model, const AdapterConfig& adapter, const WeightStorage& frozen) {
  ModuleNames also_train("adapter.also_train", adapter.also_train);
  std::vector<std::string> modules;
  freeze_if(
      model,
      [&](const std::string&, const std::string&, const ParameterSpec& parameter) {
        const std::string& tensor = parameter.sub_tensors.front().hf_name;
        if (is_adapter_tensor(tensor)) return false;
        modules.emplace_back(module_of(tensor));
        const bool named = is_also_trained(parameter, also_train);
        return !named && parameter.tag != ParameterTag::score;
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
  for (BlockSpec& block : model.blocks)
    for (CallList* list : {&block.list, &block.generation})
      *list = AdapterWriter(*list, adapters, adapter.dropout > 0).write();
  add_parameters(model, adapters);
  freeze_base(model, adapter, frozen);
}

}  // namespace stepforge
