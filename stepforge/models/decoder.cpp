// SPDX-License-Identifier: Apache-2.0
#include "stepforge/models/decoder.h"

#include <cmath>
#include <string>
#include <utility>
#include <variant>

#include "stepforge/base/format.h"
#include "stepforge/catalog/decoder_spec.h"
#include "stepforge/catalog/families.h"
#include "stepforge/nn/biased_experts.h"
#include "stepforge/nn/expert_layer.h"
#include "stepforge/nn/latent_attention.h"
#include "stepforge/nn/layers.h"

namespace stepforge {

namespace {

RopeScaling::Kind scaling_kind(RopeScalingType type) {
  switch (type) {
    case RopeScalingType::linear:
      return RopeScaling::Kind::linear;
    case RopeScalingType::llama3:
      return RopeScaling::Kind::llama3;
    case RopeScalingType::yarn:
      return RopeScaling::Kind::yarn;
    case RopeScalingType::none:
    case RopeScalingType::dynamic:  // scales for positions from max_position on, which no row has
      break;
  }
  return RopeScaling::Kind::none;
}

RopeScaling rope_scaling(const RopeScalingConfig& config) {
  return {.kind = scaling_kind(config.type),
          .factor = config.factor,
          .low_freq_factor = config.low_freq_factor,
          .high_freq_factor = config.high_freq_factor,
          .original_max_position = config.original_max_position,
          .attention_factor = config.attention_factor,
          .beta_fast = config.beta_fast,
          .beta_slow = config.beta_slow,
          .mscale = config.mscale,
          .mscale_all_dim = config.mscale_all_dim,
          .truncate = config.truncate};
}

RouterOptions router_options(const ModelConfig& model, RouterKind kind) {
  constexpr double kLeastSum = 1e-20;  // as in transformers
  const bool sigmoid = kind == RouterKind::sigmoid_groups;
  return {.score = sigmoid ? RouterScore::sigmoid : RouterScore::softmax,
          .chosen = model.experts_per_token,
          .groups = model.n_expert_groups,
          .chosen_groups = model.groups_per_token,
          .group_score = sigmoid ? GroupScore::two_largest : GroupScore::largest,
          .normalize = normalizes_experts(model),
          .epsilon = sigmoid ? kLeastSum : 0.0,
          .factor = model.routed_scaling_factor};
}

RouterSettings router_of(const ModelConfig& config, const LayerTraits& traits) {
  return {.options = router_options(config, traits.router),
          .balance_weight = config.router_aux_loss_weight,
          .z_weight = config.router_z_loss_weight};
}

ExpertLayer expert_layer_of(const ModelConfig& config, const LayerTraits& traits,
                            const ParameterLookup& parameters, const std::string& prefix, int64_t layer,
                            const ExpertExchange& exchange) {
  const ExpertDims dims = expert_dims(config);
  const ExpertLayer::Shared shared = dims.shared_hidden == 0 ? ExpertLayer::Shared::none
                                     : dims.shared_gate      ? ExpertLayer::Shared::gated
                                                             : ExpertLayer::Shared::plain;
  const at::Tensor correction =
      traits.corrected() ? parameters(prefix + ".correction").value() : at::Tensor();
  return {parameters, prefix,  router_of(config, traits), shared, config.norm_eps, layer,
          correction, exchange};
}

using FeedForward = std::variant<MlpLayer, ExpertLayer, BiasedExpertLayer>;

FeedForward feed_forward(const ModelConfig& config, const LayerTraits& traits,
                         const ParameterLookup& parameters, int64_t layer, const ForwardOptions& options) {
  const std::string prefix = format("layers.{}.mlp", layer);
  if (traits.biased_experts)
    return BiasedExpertLayer(parameters, prefix, router_of(config, traits), config.norm_eps, layer);
  if (traits.experts) return expert_layer_of(config, traits, parameters, prefix, layer, options.experts);
  return MlpLayer(parameters, prefix, traits, config.norm_eps, layer, options.tensor);
}

using Attention = std::variant<AttentionLayer, LatentAttentionLayer>;

Attention attention_of(const ModelConfig& config, const LayerTraits& traits,
                       const ParameterLookup& parameters, const RopeTable& rope, int64_t layer,
                       const ForwardOptions& options) {
  const std::string prefix = format("layers.{}.attention", layer);
  if (!traits.latent())
    return AttentionLayer(parameters, prefix, head_size(config), traits, config.norm_eps, rope, layer,
                          options.tensor, options.exchange);
  const AttentionDims dims = attention_dims(config);
  const AttentionShape shape{.heads = dims.heads,
                             .kv_heads = dims.kv_heads,
                             .head_dim = dims.head_dim,
                             .value_dim = dims.value_size()};
  return LatentAttentionLayer(parameters, prefix, shape, traits, config.norm_eps, rope, layer);
}

/// Attention, and MLP or experts, each a region that may be recomputed.
class DecoderLayer : public Block {
 public:
  DecoderLayer(const ModelConfig& config, const LayerTraits& traits, const ParameterLookup& parameters,
               int64_t layer, std::shared_ptr<const RopeTable> rope, const ForwardOptions& options)
      : rope_(std::move(rope)),
        attention_(attention_of(config, traits, parameters, *rope_, layer, options)),
        mlp_(feed_forward(config, traits, parameters, layer, options)) {}

  Bundle forward(const Bundle& inputs, const Context& context) override {
    // Captured by value: a recomputed region runs its body again after this call has returned.
    const auto attention = [this, context](const at::Tensor& x) {
      return std::visit([&](auto& layer) { return layer.forward(x, context); }, attention_);
    };
    const auto mlp = [this, context](const at::Tensor& x) {
      return std::visit([&](auto& layer) { return layer.forward(x, context); }, mlp_);
    };
    return {recompute_region(context, "mlp", mlp,
                             recompute_region(context, "attention", attention, inputs.at(0)))};
  }

 private:
  std::shared_ptr<const RopeTable> rope_;
  Attention attention_;
  FeedForward mlp_;
};

/// The tables of all layers: those with a window may have their own.
struct RopeTables {
  std::shared_ptr<const RopeTable> global;
  std::shared_ptr<const RopeTable> local;

  RopeTables(const ModelConfig& config, int64_t positions) {
    const auto table = [&](double theta, const RopeScaling& scaling) {
      const int64_t size = has_latents(config) ? config.qk_rope_head_dim : head_size(config);
      return std::make_shared<const RopeTable>(make_rope_table(positions, size, theta, scaling));
    };
    global = table(config.rope_theta, rope_scaling(config.rope_scaling));
    local = config.rope_local_theta > 0.0 ? table(config.rope_local_theta, {}) : global;
  }
};

HeadTraits head_traits(const ModelConfig& model, const ForwardOptions& options) {
  return {.norm = {model.norm_eps, find_family(model.family).traits.norm_offset},
          .logit_cap = model.logit_softcap,
          .z_weight = options.z_loss_weight};
}

}  // namespace

Model make_model(const ModelConfig& config, const std::vector<BlockSpec>& blocks,
                 const ParameterLookup& parameters, const ForwardOptions& options) {
  const ModelFamily& family = find_family(config.family);
  const RopeTables ropes(config, options.context_length);
  const double embedding_scale = family.scaled_embedding ? std::sqrt(static_cast<double>(config.dim)) : 1.0;
  const int64_t chunk = options.loss_chunk > 0 ? options.loss_chunk : automatic_loss_chunk(config.vocab_size);

  Model model;
  for (const BlockSpec& block : blocks) {
    switch (block.kind) {
      case BlockKind::embedding:
        model.blocks.push_back(std::make_unique<EmbeddingBlock>(parameters("embedding.weight"),
                                                                options.tensor, embedding_scale));
        break;
      case BlockKind::layer: {
        const LayerTraits traits = layer_traits(config, block.layer);
        model.blocks.push_back(std::make_unique<DecoderLayer>(config, traits, parameters, block.layer,
                                                              traits.window > 0 ? ropes.local : ropes.global,
                                                              options));
        break;
      }
      case BlockKind::head: {
        Parameter& output = parameters(config.tie_embeddings ? "embedding.weight" : "head.weight");
        model.heads.push_back(std::make_unique<LinearCrossEntropyHead>(
            parameters("head.norm"), output, head_traits(config, options), chunk, options.tensor));
      }
    }
  }
  return model;
}

Model make_model(const ModelConfig& config, const ParameterLookup& parameters,
                 const ForwardOptions& options) {
  return make_model(config, model_spec(config).blocks, parameters, options);
}

}  // namespace stepforge
