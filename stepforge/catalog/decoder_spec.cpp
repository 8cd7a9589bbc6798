// SPDX-License-Identifier: Apache-2.0
#include "stepforge/catalog/decoder_spec.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/catalog/expert_blocks.h"
#include "stepforge/catalog/families.h"
#include "stepforge/catalog/frozen_units.h"
#include "stepforge/catalog/model_checks.h"
#include "stepforge/catalog/mtp_layers.h"

namespace stepforge {

AttentionDims attention_dims(const ModelConfig& model) {
  if (has_latents(model)) return latent_dims(model).attention();
  return {model.dim, model.n_heads, model.n_kv_heads, head_size(model)};
}

namespace {

/// How each layer is divided.
struct LayerParts {
  TensorParallel embedding;
  TensorParallel head;
  std::vector<TensorParallel> attention;
  std::vector<TensorParallel> mlp;
};

/// The weight by which the last hidden states are multiplied.
std::string output_weight(const ModelConfig& model) {
  if (model.scores()) return "head.score";
  return model.ties() ? "embedding.weight" : "head.weight";
}

/// The matrices that are divided, or not, together.
std::vector<std::string> attention_matrices(const std::string& prefix, const LayerTraits& traits) {
  if (traits.latent()) return {prefix + ".out"};
  std::vector<std::string> matrices = {prefix + ".qkv", prefix + ".out"};
  if (traits.qkv_bias) matrices.push_back(prefix + ".qkv_bias");
  return matrices;
}

std::vector<std::string> mlp_matrices(const std::string& prefix, const LayerTraits& traits) {
  if (traits.experts) return {prefix + ".expert_gate_up", prefix + ".expert_down"};
  return {prefix + ".gate_up", prefix + ".down"};
}

LayerParts parts_of_layers(const ModelConfig& model, const TensorParallel& tensor, const TensorPlan& plan) {
  LayerParts parts;
  parts.embedding = plan.of_layer(tensor, {"embedding.weight"});
  parts.head = plan.of_layer(tensor, {output_weight(model)});
  for (int64_t layer = 0; layer < model.n_layers + model.n_mtp_layers; ++layer) {
    const std::string name = format("layers.{}", layer);
    parts.attention.push_back(
        plan.of_layer(tensor, attention_matrices(name + ".attention", layer_traits(model, layer))));
    parts.mlp.push_back(plan.of_layer(tensor, mlp_matrices(name + ".mlp", layer_traits(model, layer))));
    if (parts.attention[0].divided != parts.attention.back().divided) {
      throw UsageError(format(
          "parallelism.tensor_parallel_plan: attention is {} in layer 0 and not in layer {}; "
          "generation needs equally many key-value heads in all layers, so replicate attention in all of "
          "them or in none",
          parts.attention[0].divided ? "divided" : "replicated", layer));
    }
  }
  return parts;
}

void check_tensor_parallel(const ModelConfig& model, int64_t degree, const LayerParts& parts) {
  const auto require = [&](bool divided, bool fits, const char* key, int64_t size, const char* rule) {
    if (!divided || fits) return;
    throw UsageError(format(
        "parallelism.tensor_parallel_degree = {}, but model.{} = {}: the degree must {}; use a smaller "
        "degree, or replicate the layers with parallelism.tensor_parallel_plan",
        degree, key, size, rule));
  };
  const bool attention = parts.attention.at(0).divided;
  require(attention, model.n_heads % degree == 0, "n_heads", model.n_heads, "divide it");
  require(attention, model.n_kv_heads % degree == 0, "n_kv_heads", model.n_kv_heads, "divide it");
  const LayerTraits& traits = family_of(model).traits;
  if (attention && degree > 1 && (traits.qk_norm == QkNormScope::all_heads || traits.latent())) {
    throw UsageError(
        format("parallelism.tensor_parallel_degree = {}, but model.family = \"{}\" {}: "
               "replicate attention with parallelism.tensor_parallel_plan = [{{ pattern = \"attention\", "
               "style = \"replicate\" }}], or use another kind of parallelism",
               degree, model.family,
               traits.latent() ? "has latents, from which the keys of all heads come"
                               : "norms the queries of all heads together, and the keys"));
  }
  const bool mlp = std::ranges::any_of(parts.mlp, &TensorParallel::divided);
  require(mlp, model.ffn_dim >= degree, "ffn_dim", model.ffn_dim, "not be larger");
  require(parts.embedding.divided || parts.head.divided, model.vocab_size >= degree, "vocab_size",
          model.vocab_size, "not be larger");
}

/// The loss that balances experts is a sum over whole rows.
void check_balance(const ModelConfig& model, const ContextParallel& context) {
  if (context.degree == 1 || model.router_aux_loss_weight == 0.0) return;
  throw UsageError(
      format("parallelism.context_parallel_degree = {}, but model.router_aux_loss_weight = {}: "
             "experts are balanced within whole rows, of which a rank has a part; "
             "set the weight to 0, or use another kind of parallelism",
             context.degree, model.router_aux_loss_weight));
}

void check_expert_parallel(const ModelConfig& model, const TensorParallel& tensor,
                           const ExpertParallel& experts) {
  if (experts.degree == 1) return;
  const auto refuse = [&](const std::string& reason) {
    throw UsageError(format(
        "parallelism.expert_parallel_degree = {}{}, but {}", experts.owners(),
        experts.parts > 1 ? format(" and expert_tensor_parallel_degree = {}", experts.parts) : "", reason));
  };
  if (family_of(model).expert_names == nullptr)
    refuse(format("models of the family \"{}\" have no experts; set it to 1", model.family));
  if (model.n_experts % experts.owners() != 0)
    refuse(format("model.n_experts = {}: the degree must divide it", model.n_experts));
  if (expert_dims(model).hidden < experts.parts)
    refuse(format("experts have {} hidden units, too few to divide", expert_dims(model).hidden));
  if (tensor.degree > 1 && !tensor.sequence) {
    refuse(
        format("parallelism.tensor_parallel_degree = {} without sequence parallelism, so that {} ranks would "
               "send the same tokens: set parallelism.enable_sequence_parallel = true",
               tensor.degree, tensor.degree));
  }
}

/// Keys of latent attention are not exchanged.
void check_latent_context(const ModelConfig& model, const ContextParallel& context) {
  if (context.degree == 1 || !has_latents(model)) return;
  throw UsageError(format(
      "parallelism.context_parallel_degree = {}, but model.family = \"{}\" has latent attention, whose "
      "keys do not pass between ranks: use another kind of parallelism",
      context.degree, model.family));
}

/// A ring attends to keys whose distance it does not know.
void check_ring(const ModelConfig& model, const ContextParallel& context) {
  for (int64_t layer = 0; layer < model.n_layers && context.has_ring(); ++layer) {
    if (layer_traits(model, layer).window == 0) continue;
    throw UsageError(
        format("parallelism.context_parallel_degree = {} with a ring, but layer {} has a window "
               "(model.sliding_window = {}): use context_parallel_method = \"allgather\" or \"ulysses\"",
               context.degree, layer, model.sliding_window));
  }
}

/// A ring merges results by what the scores of each part sum to, in which a sink would count once for each part.
void check_sinks(const ModelConfig& model, const ContextParallel& context) {
  if (!context.has_ring() || !family_of(model).traits.sinks) return;
  throw UsageError(
      format("parallelism.context_parallel_degree = {} with a ring, but attention of the family \"{}\" has "
             "sinks: use context_parallel_method = \"allgather\" or \"ulysses\"",
             context.degree, model.family));
}

/// Ranks that exchange tokens for heads get equally many query heads each, and one key-value head or equally many.
void check_ulysses(const ModelConfig& model, const TensorParallel& tensor, const ContextParallel& context) {
  const int64_t degree = context.heads();
  if (degree == 1) return;
  const int64_t heads = tensor.part_of(model.n_heads).size();
  const int64_t kv_heads = tensor.part_of(model.n_kv_heads).size();
  const bool fits = heads % degree == 0 && (kv_heads % degree == 0 || degree % kv_heads == 0);
  if (fits) return;
  const bool hybrid = context.method == ContextMethod::hybrid;
  throw UsageError(format(
      "parallelism.{} = {} with context_parallel_method = \"{}\", but a rank has {} heads and {} key-value "
      "heads (model.n_heads = {}, model.n_kv_heads = {}, tensor_parallel_degree = {}): the degree must "
      "divide the heads, and divide the key-value heads or be a multiple of them; use another degree, or the "
      "method \"allgather\"",
      hybrid ? "ulysses_degree" : "context_parallel_degree", degree, hybrid ? "hybrid" : "ulysses", heads,
      kv_heads, model.n_heads, model.n_kv_heads, tensor.degree));
}

/// Adds units with the parameters of the layers, and a block that uses them. `hidden` passes between blocks.
void add_block(ModelSpec& spec, const BundleEntry& hidden, const std::string& name, BlockKind kind, int layer,
               std::vector<LayerSpec> layers) {
  BlockSpec block;
  block.name = name;
  block.kind = kind;
  block.layer = layer;
  std::vector<LayerSpec*> parts;
  for (LayerSpec& part : layers) parts.push_back(&part);
  if (kind != BlockKind::embedding) block.inputs.push_back(hidden);
  if (kind != BlockKind::head) block.outputs.push_back(hidden);
  block.units = add_units(spec, name, parts);
  for (LayerSpec& part : layers) add_lists(block, std::move(part));
  spec.blocks.push_back(std::move(block));
}

HeadDims head_dims(const ModelConfig& model, int64_t chunk, const std::string& output,
                   const std::string& hf_norm = HeadDims().hf_norm) {
  return {.width = model.dim,
          .vocab = model.vocab_size,
          .chunk = chunk,
          .output = output,
          .norm_eps = model.norm_eps,
          .norm_offset = family_of(model).traits.norm_offset,
          .logit_cap = model.logit_softcap,
          .hf_norm = hf_norm};
}

/// Gives the norm of the head a unit of its own, unless it has one: other blocks read it, and not the output projection.
/// Returns the index of the unit.
int separate_norm(ModelSpec& spec, BlockSpec& head) {
  const int unit = head.units.front();
  std::vector<ParameterSpec>& parameters = spec.units.at(static_cast<size_t>(unit)).parameters;
  if (parameters.size() == 1) return unit;
  UnitSpec norm{.name = "norm", .parameters = {std::move(parameters.front())}};
  parameters.erase(parameters.begin());
  head.units.push_back(static_cast<int>(spec.units.size()));
  spec.units.push_back(std::move(norm));
  return head.units.back();
}

/// The layers of multi-token prediction, with their heads, after the head of the model (mtp_layers.h).
void add_mtp(ModelSpec& spec, const ModelConfig& model, const BundleEntry& hidden, int64_t loss_chunk,
             const TensorParallel& tensor, const TensorParallel& head_part,
             const std::function<void(int64_t layer)>& add_layer) {
  const std::string output = output_weight(model);
  const int output_unit = model.ties() ? 0 : spec.blocks.back().units.front();
  int norm_unit = separate_norm(spec, spec.blocks.back());
  for (int64_t depth = 1; depth <= model.n_mtp_layers; ++depth) {
    const std::string name = mtp_name(model, depth);
    const std::string hf_prefix = "model." + name + ".";
    const auto layer = static_cast<int>(model.n_layers + depth - 1);
    const size_t first = spec.blocks.size();
    add_block(spec, hidden, name + ".mtp", BlockKind::mtp, layer,
              {mtp_layer(name + ".mtp", hf_prefix, mtp_norm(model, depth - 1), model.dim,
                         layer_traits(model, layer), tensor)});
    spec.blocks.back().inputs.push_back(mtp_embedded(hidden, depth));
    spec.blocks.front().outputs.push_back(mtp_embedded(hidden, depth));
    spec.blocks.back().units.push_back(norm_unit);
    add_layer(layer);
    add_block(
        spec, hidden, name + ".head", BlockKind::head, -1,
        {head_layer(name + ".head",
                    head_dims(model, loss_chunk, output, hf_prefix + "shared_head.norm.weight"), head_part)});
    norm_unit = spec.blocks.back().units.front();
    spec.blocks.back().units.push_back(output_unit);
    spec.blocks.back().loss_weight = model.mtp_loss_weight / static_cast<double>(model.n_mtp_layers);
    for (size_t b = first; b < spec.blocks.size(); ++b) spec.blocks[b].ahead = static_cast<int>(depth);
    const auto add_copy = [&](const std::string& parameter, const char* name) {
      spec.copies.push_back({spec.find_parameter(parameter)->sub_tensors.front().hf_name, hf_prefix + name});
    };
    add_copy("embedding.weight", "embed_tokens.weight");
    add_copy(output, "shared_head.head.weight");
  }
}

/// The corrections of routers, after all weights: a unit of state for each layer that has one.
void add_corrections(ModelSpec& spec, const ModelConfig& model) {
  for (BlockSpec& block : spec.blocks) {
    if (block.kind != BlockKind::layer || !block.begins_layer()) continue;
    if (!layer_traits(model, block.layer).corrected()) continue;
    block.units.push_back(static_cast<int>(spec.units.size()));
    spec.units.push_back({.name = block.name + ".router",
                          .parameters = {router_correction(format("{}.mlp", block.name),
                                                           format("model.layers.{}.", block.layer),
                                                           model.n_experts, family_of(model).expert_names())},
                          .trainable = false,
                          .state = true,
                          .layer = block.layer});
  }
}

}  // namespace

ModelSpec model_spec(const ModelConfig& model, int64_t loss_chunk, const TensorParallel& tensor,
                     const ContextParallel& context, const TensorPlan& plan, const ExpertParallel& experts) {
  if (model.vocab_size <= 0)
    throw UsageError("model.vocab_size is not set and there is no tokenizer to take it from");
  check_model(model);
  check_latent_context(model, context);
  const LayerParts parts = parts_of_layers(model, tensor, plan);
  const TensorParallel& attention = parts.attention.at(0);
  check_tensor_parallel(model, tensor.degree, parts);
  check_ulysses(model, attention, context);
  check_ring(model, context);
  check_expert_parallel(model, tensor, experts);
  check_sinks(model, context);
  check_balance(model, context);
  const AttentionDims dims = attention_dims(model);
  const bool dropout = model.dropout > 0.0;
  if (loss_chunk <= 0) loss_chunk = automatic_loss_chunk(model.vocab_size);

  ModelSpec spec;
  spec.family = model.family;
  spec.further_layers = family_of(model).further_layers;
  spec.vocab_size = model.vocab_size;
  spec.width = model.dim;
  spec.layers = model.n_layers;
  spec.ahead = static_cast<int>(model.n_mtp_layers);
  spec.max_position = model.max_position;
  spec.kv_heads = attention.part_of(model.n_kv_heads).size();
  spec.head_dim = dims.head_dim;
  spec.value_dim = dims.value_size();
  spec.attention_width = attention.part_of(model.n_heads).size() * dims.head_dim;
  spec.rope = rope_spec(model);
  spec.local_rope = local_rope_spec(model);
  spec.degrees = {tensor.degree, context.across(), context.heads(), experts.degree};

  const BundleEntry hidden{"hidden", model.dim, tensor.sequence};
  add_block(spec, hidden, "embedding", BlockKind::embedding, -1,
            {embedding_layer("embedding", "model.embed_tokens.weight", model.vocab_size, model.dim,
                             parts.embedding, model.n_mtp_layers, embedding_factor(model))});
  const auto add_layer = [&](int64_t layer) {
    const std::string name = format("layers.{}", layer);
    const std::string hf_prefix = format("model.layers.{}.", layer);
    const double depth_std = residual_std(layer);
    const LayerTraits traits = layer_traits(model, layer);
    LayerSpec attention =
        traits.latent()
            ? latent_attention_layer(name + ".attention", hf_prefix, latent_dims(model), traits, depth_std,
                                     dropout, parts.attention.at(static_cast<size_t>(layer)))
            : attention_layer(name + ".attention", hf_prefix, dims, traits, depth_std, dropout,
                              parts.attention.at(static_cast<size_t>(layer)), context);
    if (traits.experts && experts.degree > 1) {
      add_expert_blocks(
          spec, hidden, static_cast<int>(layer), std::move(attention),
          expert_parts(name + ".mlp", hf_prefix, expert_dims(model), family_of(model).expert_names(),
                       depth_std, dropout, traits, router_settings(model, traits), experts, tensor),
          expert_dims(model), experts);
      return;
    }
    LayerSpec mlp = traits.experts ? expert_layer(name + ".mlp", hf_prefix, expert_dims(model),
                                                  family_of(model).expert_names(), depth_std, dropout, traits,
                                                  router_settings(model, traits), tensor)
                                   : mlp_layer(name + ".mlp", hf_prefix, model.dim, model.ffn_dim, traits,
                                               depth_std, dropout, parts.mlp.at(static_cast<size_t>(layer)));
    add_block(spec, hidden, name, BlockKind::layer, static_cast<int>(layer),
              {std::move(attention), std::move(mlp)});
  };
  for (int64_t layer = 0; layer < model.n_layers; ++layer) add_layer(layer);
  const HeadDims head = head_dims(model, loss_chunk, model.ties() ? output_weight(model) : "");
  add_block(spec, hidden, "head", BlockKind::head, -1,
            {model.scores() ? score_layer("head", head, model.score_init_std, parts.head)
                            : head_layer("head", head, parts.head)});
  if (model.ties()) {
    // The head reads the unit of the embedding: one copy, one summed gradient.
    spec.blocks.back().units.push_back(0);
    spec.ties.push_back({"embedding.weight", "head", "lm_head.weight"});
  }
  if (model.n_mtp_layers > 0) add_mtp(spec, model, hidden, loss_chunk, tensor, parts.head, add_layer);
  add_corrections(spec, model);
  plan.check_rules(spec);
  freeze_units(spec, model.freeze, storage_of(model));
  return spec;
}

}  // namespace stepforge
