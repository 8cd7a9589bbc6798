// SPDX-License-Identifier: Apache-2.0
#include "stepforge/prove/exact_spec.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "stepforge/catalog/adapters.h"
#include "stepforge/catalog/decoder_spec.h"
#include "stepforge/catalog/families.h"
#include "stepforge/modelspec/call_passes.h"
#include "stepforge/modelspec/calls/lookup.h"
#include "stepforge/modelspec/calls/residual.h"

namespace stepforge {

namespace {

constexpr const char* kFamily = "exact";
constexpr double kSpread = 0.4;  ///< standard deviation of weights, most of which round to multiples of 1/4

/// Settings that models of this kind have besides those of all families.
constexpr auto kSettings = std::to_array<HfField>({
    {.key = "num_key_value_heads", .field = "n_kv_heads"},
    {.key = "head_dim", .field = "head_dim"},
    {.key = "num_nextn_predict_layers", .field = "n_mtp_layers"},
    {.key = "num_experts", .field = "n_experts"},
    {.key = "num_experts_per_tok", .field = "experts_per_token"},
    {.key = "moe_intermediate_size", .field = "moe_ffn_dim"},
    {.key = "shared_expert_intermediate_size", .field = "shared_expert_dim"},
});
constexpr std::size_t kWithoutShared = kSettings.size() - 1;

ModelFamily family_of_model(ExactModel model) {
  ModelFamily family{.name = kFamily, .hf_model_type = kFamily};
  family.hf_keys = kSettings;
  family.traits = {.qkv_bias = true, .qk_norm = QkNormScope::head};
  if (!has_experts(model)) return family;
  family.expert_names = qwen_expert_names;
  if (model != ExactModel::biased) return family;
  family.hf_keys = family.hf_keys.first(kWithoutShared);
  family.expert_names = gpt_oss_expert_names;
  family.traits.out_bias = family.traits.biased_experts = true;
  return family;
}

ModelConfig config_of(ExactModel model, const Config& job) {
  auto families = std::make_shared<Registry>();
  families->add(family_of_model(model));
  ModelConfig config;
  config.plugins = std::move(families);
  config.family = kFamily;
  config.dim = 37;
  config.n_layers = job.model.n_layers;
  config.head = job.model.head;
  config.n_heads = 48;
  config.n_kv_heads = 24;
  config.head_dim = 2;
  config.ffn_dim = 53;
  config.vocab_size = kExactVocabulary;
  config.max_position = 4096;
  config.dropout = 0.5;
  if (model == ExactModel::shared) {
    config.tie_embeddings = true;
    config.freeze = {R"(layers\.\d+\.attention\.qkv)"};
  }
  if (has_experts(model)) {
    config.n_experts = 6;
    config.experts_per_token = 2;
    config.moe_ffn_dim = 11;
    if (model != ExactModel::biased) config.shared_expert_dim = 13;
  }
  if (has_mtp(model)) config.n_mtp_layers = 1;
  config.mtp_loss_weight = has_mtp(model) ? 0.5 : config.mtp_loss_weight;  // a power of two
  return config;
}

void spread_weights(ModelSpec& spec) {
  for (UnitSpec& unit : spec.units)
    for (ParameterSpec& parameter : unit.parameters)
      for (SubTensor& tensor : parameter.sub_tensors)
        if (parameter.tag != ParameterTag::norm) tensor.init = {Initializer::Kind::normal, kSpread};
}

/// Rows of the embedding become integers.
void scale_embedding(BlockSpec& embedding) {
  for (CallList* list : {&embedding.list, &embedding.generation})
    for (Call& call : list->calls)
      if (call.is(kLookup)) std::any_cast<LookupAttributes&>(call.attributes).factor = 4.0;
}

/// The sum of two values, before a layer.
CallList join_calls(int64_t width) {
  ListWriter writer("join");
  const int hidden = writer.input({"hidden", width});
  const int source = writer.input({"source", width});
  return writer.finish({writer.call(kAdd, "sum", {hidden, source})});
}

/// What the embedding makes goes to every second layer too, and to a second head.
void make_graph(ModelSpec& spec, const TensorParallel& tensor, const TensorPlan& plan) {
  BlockSpec& embedding = spec.blocks.front();
  BundleEntry source = embedding.outputs.front();
  source.name = "source";
  embedding.outputs.push_back(source);
  for (CallList* list : {&embedding.list, &embedding.generation})
    list->outputs.push_back(list->outputs.front());
  for (BlockSpec& block : spec.blocks) {
    if (block.layer % 2 != 1) continue;
    block.inputs.push_back(source);
    const CallList sum = join_calls(source.width);
    block.list = joined(on_slices(sum, tensor), block.list);
    block.generation = joined(sum, block.generation);
  }
  LayerSpec extra = head_layer("extra",
                               {.width = source.width,
                                .vocab = spec.vocab_size,
                                .chunk = automatic_loss_chunk(spec.vocab_size),
                                .hf_norm = "extra.norm.weight"},
                               plan.of_layer(tensor, {"extra.weight"}));
  extra.parameters.back().sub_tensors.front().hf_name = "extra.weight";
  BlockSpec head{.name = "extra", .kind = BlockKind::head};
  head.units = {static_cast<int>(spec.units.size())};
  head.inputs = {source};
  head.list = std::move(extra.list);
  head.generation = std::move(extra.generation);
  head.loss_weight = 2;
  spec.blocks.push_back(std::move(head));
  spec.units.push_back({"extra", std::move(extra.parameters)});
}

}  // namespace

AdapterConfig exact_adapters(ExactModel model, const std::vector<std::string>& more) {
  AdapterConfig adapter;
  adapter.type = AdapterType::lora;
  adapter.rank = 4;
  adapter.alpha = 4;
  std::ranges::copy(more, std::back_inserter(adapter.targets));
  adapter.patterns = {{.pattern = "k_proj", .rank = 2, .alpha = 4}};
  // All matrices of this name are those of experts, which have no adapters.
  if (model != ExactModel::biased)
    adapter.patterns.push_back({.pattern = ".*down_proj", .rank = 3, .alpha = 6});
  adapter.also_train = {"norm", "input_layernorm"};
  return adapter;
}

ModelSpec exact_spec(ExactModel model, const Config& job, const TensorParallel& tensor,
                     const ContextParallel& context, const TensorPlan& plan, const ExpertParallel& experts) {
  ModelSpec spec = model_spec(config_of(model, job), 0, tensor, context, plan, experts);
  AdapterConfig adapter = job.adapter;
  if (model == ExactModel::adapted) {
    adapter = exact_adapters(model);
    adapter.dropout = 0.5;  // the list has it whether or not the job has
  }
  add_adapters(spec, adapter, {DType::f32});
  if (model == ExactModel::graph) make_graph(spec, tensor, plan);
  scale_embedding(spec.blocks.front());
  spread_weights(spec);
  return spec;
}

}  // namespace stepforge
