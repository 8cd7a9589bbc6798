// SPDX-License-Identifier: Apache-2.0
// Small mixtures of experts bound to their storage, and the same layers in plain fp64 tensor operations.
#pragma once

#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/logsumexp.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "stepforge/catalog/adapters.h"
#include "stepforge/catalog/expert_layers.h"
#include "stepforge/kernels/kernel_list.h"
#include "stepforge/nn/list_block.h"
#include "stepforge/nn/router_step.h"
#include "tests/nn/reference.h"
#include "tests/nn/tiny_model.h"
#include "tests/support/in_graph.h"

namespace stepforge::testing {

struct ExpertCase {
  std::string name;
  ExpertDims dims = {};
  RouterSettings router = {};
  ExpertNames names = qwen_expert_names();
  bool correction = false;
  AdapterConfig adapter = {};

  LayerTraits traits() const {
    return {.norm_eps = 1e-5,
            .experts = true,
            .router = correction ? RouterKind::sigmoid_groups : RouterKind::softmax};
  }
  LayerSpec layer() const {
    return expert_layer("layers.0.mlp", "model.layers.0.", dims, names, 0.02, false, traits(), router);
  }
  /// The layer as a model, with its adapters.
  ModelSpec model() const {
    const LayerSpec whole = layer();
    ModelSpec made;
    made.layers = 1;
    made.units = {{"layers.0", whole.parameters}};
    made.blocks = {{.name = "layers.0",
                    .layer = 0,
                    .units = {0},
                    .inputs = {{"hidden", dims.width}},
                    .outputs = {{"hidden", dims.width}},
                    .list = whole.list,
                    .generation = whole.list}};
    add_adapters(made, adapter, {DType::f32});
    return made;
  }
  CallList calls() const { return model().blocks.front().list; }
};

/// Makes GoogleTest print the case's name instead of its bytes.
inline void PrintTo(const ExpertCase& layer_case, std::ostream* stream) {
  *stream << layer_case.name;
}

/// A router of each kind, shared experts without, plain and gated, with and without losses.
inline std::vector<ExpertCase> expert_cases() {
  const ExpertDims dims{.width = 24, .hidden = 20, .experts = 8, .chosen = 3};
  ExpertDims plain = dims;
  plain.shared_hidden = 28;
  ExpertDims gated = plain;
  gated.shared_gate = true;
  ExpertDims one = dims;
  one.chosen = 1;
  const RouterOptions softmax{.chosen = 3, .normalize = true};
  const RouterOptions grouped{RouterScore::sigmoid, 3, 4, 2, GroupScore::two_largest, true, 1e-20, 2.5};
  return {{"qwen3", dims, {softmax, 0.5, 0.25}},
          {"mixtral", dims, {softmax}, mixtral_expert_names()},
          {"one_of_many", one, {{.chosen = 1}, 0.5}},
          {"qwen2_gated", gated, {{.chosen = 3}, 0.5, 0.25}},
          {"deepseek", plain, {grouped, 0.5}, deepseek_expert_names(), true}};
}

/// Experts with adapters: of all their matrices, with one rank or several, with one A, with magnitudes; of some; and beside those of a shared expert.
inline std::vector<ExpertCase> adapted_expert_cases() {
  const ExpertDims dims{.width = 24, .hidden = 20, .experts = 8, .chosen = 3};
  ExpertDims gated = dims;
  gated.shared_hidden = 28;
  gated.shared_gate = true;
  ExpertDims one = dims;
  one.chosen = 1;
  const RouterOptions softmax{.chosen = 3, .normalize = true};
  AdapterConfig all;
  all.type = AdapterType::lora;
  all.rank = 4;
  all.alpha = 6;
  all.targets = {".*\\.experts\\..*"};
  AdapterConfig ranks = all;
  ranks.patterns = {{.pattern = "up_proj", .rank = 5}, {.pattern = "down_proj", .rank = 2, .alpha = 2}};
  AdapterConfig some = all;
  some.targets = {"up_proj"};
  AdapterConfig shared = ranks;
  shared.experts = ExpertAdapters::shared_a;
  AdapterConfig magnitudes = ranks;
  magnitudes.type = AdapterType::dora;
  AdapterConfig both = all;
  both.targets = {"all-linear", "down_proj"};
  return {{"qwen3_adapted", dims, {softmax, 0.5, 0.25}, qwen_expert_names(), false, all},
          {"qwen3_adapted_with_ranks", dims, {softmax}, qwen_expert_names(), false, ranks},
          {"qwen3_adapted_with_shared_a", dims, {softmax}, qwen_expert_names(), false, shared},
          {"qwen3_adapted_with_magnitudes", dims, {softmax}, qwen_expert_names(), false, magnitudes},
          {"one_of_many_adapted", one, {{.chosen = 1}, 0.5}, qwen_expert_names(), false, some},
          {"qwen2_gated_adapted", gated, {{.chosen = 3}}, qwen_expert_names(), false, both}};
}

/// The layer of a case with storage; its parameters are gathered.
struct ExpertModel {
  explicit ExpertModel(const ExpertCase& layer_case, DType compute = DType::f32)
      : spec(layer_case.layer()),
        adapted(layer_case.model()),
        store(adapted.units, rank_layout(adapted.units, {.gather = compute})),
        correction(layer_case.correction ? random_tensor({layer_case.dims.experts}, 50) * 0.3 : at::Tensor()),
        correction_spec{"layers.0.mlp.correction", {layer_case.dims.experts}, {}},
        correction_parameter(&correction_spec, correction, at::Tensor()),
        block(adapted.blocks.front().list, adapted.blocks.front().list, lookup(),
              std::make_shared<const LayerResources>()) {
    for (size_t u = 0; u < store.size(); ++u) fill(store.unit(u), 100 + 50 * u);
  }
  ExpertModel(const ExpertModel&) = delete;
  ExpertModel& operator=(const ExpertModel&) = delete;

  Parameter& parameter(const std::string& name) { return store.parameter("layers.0.mlp." + name); }
  ParameterLookup lookup() {
    return [this](std::string_view name) -> Parameter& {
      return name == correction_spec.name ? correction_parameter : store.lookup()(name);
    };
  }
  at::Tensor forward(const at::Tensor& x, const Context& context) {
    return forward_in_graph(block, {x}, context).front();
  }

  LayerSpec spec;     ///< without adapters
  ModelSpec adapted;  ///< the layer as it is stored and run
  ModelStore store;
  at::Tensor correction;
  ParameterSpec correction_spec;
  Parameter correction_parameter;
  ListBlock block;

 private:
  static void fill(UnitStore& unit, uint64_t seed) {
    for (size_t i = 0; i < unit.parameters().size(); ++i) {
      at::Tensor master = unit.master_view(i);
      const bool norm = unit.spec().parameters[i].tag == ParameterTag::norm;
      master.copy_(random_tensor(master.sizes(), seed + i) * (norm ? 0.25 : 0.4) + (norm ? 1.0 : 0.0));
    }
    if (!unit.resident())
      unit.gather(at::empty({unit.gathered_size()}, unit.parameters().front().value().scalar_type()));
    unit.start_gradient();
  }
};

/// The layer and the losses of its router, by a loop over all experts.
class ReferenceExperts {
 public:
  ReferenceExperts(const ExpertCase& layer_case, ExpertModel& model) : case_(layer_case), model_(model) {}

  /// Adds to `losses` what backward adds to the loss, without the scale.
  at::Tensor forward(const at::Tensor& x, const RouterStep& step, at::Tensor& losses) {
    const at::Tensor normed = reference_norm(x, weight("norm"), 1e-5);
    const at::Tensor logits = at::matmul(normed, weight("router").t());
    const at::Tensor dense = dense_weights(logits, step, losses);
    at::Tensor out = x;
    for (int64_t e = 0; e < case_.dims.experts; ++e) {
      const at::Tensor gate_up = weight("expert_gate_up").view({case_.dims.experts, -1, case_.dims.width});
      const at::Tensor down = weight("expert_down").view({case_.dims.experts, case_.dims.width, -1});
      out = out + dense.select(1, e).unsqueeze(1) * mlp(normed, gate_up.select(0, e), down.select(0, e));
    }
    if (case_.dims.shared_hidden == 0) return out;
    at::Tensor shared = mlp(normed, weight("shared_gate_up"), weight("shared_down"));
    if (case_.dims.shared_gate) shared = shared * at::sigmoid(at::matmul(normed, weight("shared_gate").t()));
    return out + shared;
  }

  /// By name, as far as forward() has used them.
  const std::map<std::string, at::Tensor>& weights() const { return weights_; }
  /// [N, E] bool: the experts of each token.
  const at::Tensor& chosen() const { return chosen_; }

 private:
  at::Tensor weight(const std::string& name) {
    return weights_.try_emplace(name, leaf64(model_.parameter(name).value())).first->second;
  }

  static at::Tensor mlp(const at::Tensor& x, const at::Tensor& gate_up, const at::Tensor& down) {
    return at::matmul(reference_swiglu(at::matmul(x, gate_up.t())), down.t());
  }

  at::Tensor dense_weights(const at::Tensor& logits, const RouterStep& step, at::Tensor& losses) {
    const RouterOptions& options = case_.router.options;
    const at::Tensor indices = at::empty({logits.size(0), options.chosen}, at::kInt);
    const at::Tensor unused = at::empty(indices.sizes(), at::kDouble);
    const at::Tensor shift = model_.correction.defined() ? model_.correction.to(at::kDouble) : at::Tensor();
    reference::router_forward(logits.detach(), shift, {}, options, indices, unused, {});
    chosen_ = at::zeros(logits.sizes(), at::kBool).scatter(1, indices.to(at::kLong), true);
    const at::Tensor scores = options.score == RouterScore::softmax ? logits.softmax(1) : at::sigmoid(logits);
    at::Tensor dense = scores * chosen_;
    if (options.normalize) dense = dense / (dense.sum(1, true) + options.epsilon);
    losses = losses + balance(scores, step) * case_.router.balance_weight;
    const at::Tensor counted = step.token_weights().to(at::kDouble);
    losses = losses + (at::logsumexp(logits, {1}).square() * counted).sum() * case_.router.z_weight;
    return dense * options.factor;
  }

  at::Tensor balance(const at::Tensor& scores, const RouterStep& step) const {
    const at::Tensor counted = step.token_weights().to(at::kDouble).unsqueeze(1);
    const auto of_rows = [&](const at::Tensor& x) {
      return (x * counted).view({step.rows(), -1, x.size(1)}).sum(1);
    };
    const at::Tensor load = of_rows(chosen_.to(at::kDouble));
    const at::Tensor prob = of_rows(scores / scores.sum(1, true));
    const at::Tensor total = counted.view({step.rows(), -1}).sum(1, true);
    const double factor =
        static_cast<double>(case_.dims.experts) / static_cast<double>(case_.router.options.chosen);
    return (load * prob * factor / total).sum();
  }

  const ExpertCase& case_;
  ExpertModel& model_;
  std::map<std::string, at::Tensor> weights_;
  at::Tensor chosen_;
};

}  // namespace stepforge::testing
