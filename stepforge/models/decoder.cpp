// SPDX-License-Identifier: Apache-2.0
#include "stepforge/models/decoder.h"

#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/catalog/decoder_spec.h"
#include "stepforge/catalog/families.h"
#include "stepforge/catalog/mtp_layers.h"
#include "stepforge/nn/biased_experts.h"
#include "stepforge/nn/expert_layer.h"
#include "stepforge/nn/latent_attention.h"
#include "stepforge/nn/layers.h"
#include "stepforge/nn/list_block.h"
#include "stepforge/nn/mtp.h"

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
    case RopeScalingType::longrope:
      return RopeScaling::Kind::longrope;
    case RopeScalingType::none:
    case RopeScalingType::dynamic:  // scales for positions from max_position on, which no row has
      break;
  }
  return RopeScaling::Kind::none;
}

RopeScaling rope_scaling(const RopeScalingConfig& config, int64_t row_length) {
  return {.kind = scaling_kind(config.type),
          .factor = config.factor,
          .low_freq_factor = config.low_freq_factor,
          .high_freq_factor = config.high_freq_factor,
          .original_max_position = config.original_max_position,
          .attention_factor = config.attention_factor,
          .divisors = row_length > config.original_max_position ? config.long_factor : config.short_factor,
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
          .z_weight = config.router_z_loss_weight,
          .biased = traits.biased_experts};
}

std::string mlp_prefix(int64_t layer) {
  return format("layers.{}.mlp", layer);
}

at::Tensor correction_of(const LayerTraits& traits, const ParameterLookup& parameters,
                         const std::string& prefix) {
  return traits.corrected() ? parameters(prefix + ".correction").value() : at::Tensor();
}

ExpertFunction experts_of(const LayerTraits& traits, const ParameterLookup& parameters, int64_t layer) {
  const std::string prefix = mlp_prefix(layer);
  return traits.biased_experts ? biased_experts(parameters, prefix) : swiglu_experts(parameters, prefix);
}

ExpertLayer expert_layer_of(const ModelConfig& config, const LayerTraits& traits,
                            const ParameterLookup& parameters, const std::string& prefix, int64_t layer,
                            const TensorExchange& tensor) {
  const ExpertDims dims = expert_dims(config);
  const ExpertLayer::Shared shared = dims.shared_hidden == 0 ? ExpertLayer::Shared::none
                                     : dims.shared_gate      ? ExpertLayer::Shared::gated
                                                             : ExpertLayer::Shared::plain;
  return {parameters,
          prefix,
          router_of(config, traits),
          experts_of(traits, parameters, layer),
          shared,
          config.norm_eps,
          layer,
          correction_of(traits, parameters, prefix),
          tensor};
}

/// What layers share.
struct LayerContext {
  const ModelConfig& config;
  const ParameterLookup& parameters;
  const ForwardOptions& options;
  std::shared_ptr<const LayerResources> resources;
};

std::unique_ptr<ListBlock> list_block(const LayerContext& made_for, CallList training, CallList generation) {
  return std::make_unique<ListBlock>(std::move(training), std::move(generation), made_for.parameters,
                                     made_for.resources);
}

LatentAttentionLayer latent_attention(const LayerContext& made_for, const LayerTraits& traits,
                                      int64_t layer) {
  const AttentionDims dims = attention_dims(made_for.config);
  const AttentionShape shape{.heads = dims.heads,
                             .kv_heads = dims.kv_heads,
                             .head_dim = dims.head_dim,
                             .value_dim = dims.value_size()};
  return {made_for.parameters,
          format("layers.{}.attention", layer),
          shape,
          traits,
          made_for.config.norm_eps,
          *made_for.resources->rope,
          layer,
          made_for.options.tensor};
}

/// The attention of a layer, a region that may be recomputed.
class AttentionRegion {
 public:
  AttentionRegion(const LayerContext& made_for, const LayerTraits& traits, const BlockSpec& block)
      : resources_(made_for.resources) {
    const RegionSpec& region = block.regions.front();
    if (region.list.empty())
      latent_.emplace(latent_attention(made_for, traits, block.layer));
    else
      calls_ = list_block(made_for, region.list, region.generation);
  }

  at::Tensor forward(const at::Tensor& x, const Context& context) {
    if (calls_) return calls_->forward({x}, context).front();
    // Captured by value: a recomputed region runs its body again after this call has returned.
    const auto attention = [this, context](const at::Tensor& input) {
      return latent_->forward(input, context);
    };
    return recompute_region(context, "attention", attention, x);
  }

 private:
  std::shared_ptr<const LayerResources> resources_;  ///< whose rotary table latent_ reads
  std::unique_ptr<ListBlock> calls_;
  std::optional<LatentAttentionLayer> latent_;
};

/// Attention, and MLP or experts, each a region that may be recomputed.
class DecoderLayer : public Block {
 public:
  DecoderLayer(const LayerContext& made_for, const LayerTraits& traits, const BlockSpec& block)
      : attention_(made_for, traits, block) {
    const RegionSpec& mlp = block.regions.at(1);
    if (mlp.list.empty())
      experts_.emplace(expert_layer_of(made_for.config, traits, made_for.parameters, mlp_prefix(block.layer),
                                       block.layer, made_for.options.tensor));
    else
      mlp_ = list_block(made_for, mlp.list, mlp.generation);
  }

  Bundle forward(const Bundle& inputs, const Context& context) override {
    const at::Tensor attended = attention_.forward(inputs.at(0), context);
    if (mlp_) return mlp_->forward({attended}, context);
    const auto experts = [this, context](const at::Tensor& x) { return experts_->forward(x, context); };
    return {recompute_region(context, "mlp", experts, attended)};
  }

 private:
  AttentionRegion attention_;
  std::unique_ptr<ListBlock> mlp_;
  std::optional<ExpertLayer> experts_;
};

// The blocks of a layer whose experts are spread over ranks (modelspec/expert_values.h).

class RouterBlock : public Block {
 public:
  RouterBlock(const LayerContext& made_for, const LayerTraits& traits, const BlockSpec& block)
      : attention_(made_for, traits, block),
        router_(made_for.parameters, mlp_prefix(block.layer), router_of(made_for.config, traits),
                made_for.config.norm_eps, block.layer,
                correction_of(traits, made_for.parameters, mlp_prefix(block.layer))) {}

  Bundle forward(const Bundle& inputs, const Context& context) override {
    ExpertTokens made = router_.forward(attention_.forward(inputs.at(0), context), context);
    return {std::move(made.residual), std::move(made.tokens), std::move(made.routed.weights),
            std::move(made.routed.indices)};
  }

 private:
  AttentionRegion attention_;
  ExpertRouter router_;
};

class SharedExpertBlock : public Block {
 public:
  SharedExpertBlock(const ParameterLookup& parameters, int64_t layer, bool gated)
      : shared_(parameters, mlp_prefix(layer), gated) {}

  Bundle forward(const Bundle& inputs, const Context&) override {
    SharedResult made = shared_.forward(inputs.at(0));
    Bundle outputs = {std::move(made.result)};
    if (made.gate.defined()) outputs.push_back(std::move(made.gate));
    return outputs;
  }

 private:
  SharedExpert shared_;
};

/// Of rows that ranks have sent, each with one expert.
class ExpertsBlock : public Block {
 public:
  explicit ExpertsBlock(ExpertFunction experts) : experts_(std::move(experts)) {}

  Bundle forward(const Bundle& inputs, const Context& context) override {
    const auto experts = [this](const std::vector<at::Tensor>& rows) {
      return experts_(rows[0], {rows[1], rows[2]});
    };
    return {recompute_region(context, "mlp", experts, inputs)};
  }

 private:
  ExpertFunction experts_;
};

class JoinBlock : public Block {
 public:
  JoinBlock(int64_t layer, TensorExchange tensor) : layer_(layer), tensor_(std::move(tensor)) {}

  Bundle forward(const Bundle& inputs, const Context& context) override {
    const auto optional = [&](size_t i) { return i < inputs.size() ? inputs[i] : at::Tensor(); };
    return {join_experts(inputs.at(1), {optional(2), optional(3)}, inputs.at(0), layer_, context, tensor_)};
  }

 private:
  int64_t layer_;
  TensorExchange tensor_;
};

/// The rotary tables of all layers, of which those with a window may have their own, and the exchanges.
std::shared_ptr<const LayerResources> layer_resources(const ModelConfig& config,
                                                      const ForwardOptions& options) {
  const int64_t positions = options.context_length;
  const int64_t row_length = options.row_length > 0 ? options.row_length : positions;
  const auto table = [&](double theta, const RopeScaling& scaling) {
    const int64_t size = has_latents(config) ? config.qk_rope_head_dim : head_size(config);
    return std::make_shared<const RopeTable>(make_rope_table(positions, size, theta, scaling));
  };
  LayerResources made{{}, {}, options.tensor, options.exchange};
  made.rope = table(config.rope_theta, rope_scaling(config.rope_scaling, row_length));
  made.local_rope = config.rope_local_theta > 0.0 ? table(config.rope_local_theta, {}) : made.rope;
  return std::make_shared<const LayerResources>(std::move(made));
}

HeadTraits head_traits(const ModelConfig& model, const ForwardOptions& options) {
  return {.norm = {model.norm_eps, family_of(model).traits.norm_offset},
          .logit_cap = model.logit_softcap,
          .z_weight = options.z_loss_weight,
          .smoothing = options.label_smoothing,
          .loss = options.loss};
}

std::unique_ptr<Block> layer_block(const LayerContext& made_for, const BlockSpec& block) {
  if (CallList calls = block.calls(); !calls.empty())
    return list_block(made_for, std::move(calls), block.generation());
  const LayerTraits traits = layer_traits(made_for.config, block.layer);
  switch (block.part) {
    case LayerPart::whole:
      return std::make_unique<DecoderLayer>(made_for, traits, block);
    case LayerPart::router:
      return std::make_unique<RouterBlock>(made_for, traits, block);
    case LayerPart::shared:
      return std::make_unique<SharedExpertBlock>(made_for.parameters, block.layer,
                                                 expert_dims(made_for.config).shared_gate);
    case LayerPart::experts:
      return std::make_unique<ExpertsBlock>(experts_of(traits, made_for.parameters, block.layer));
    case LayerPart::join:
      return std::make_unique<JoinBlock>(block.layer, made_for.options.tensor);
  }
  throw Error(format("{}: no such part of a layer", block.name));
}

}  // namespace

Model make_model(const ModelConfig& config, const std::vector<BlockSpec>& blocks,
                 const ParameterLookup& parameters, const ForwardOptions& options) {
  const ModelFamily& family = family_of(config);
  const LayerContext made_for{config, parameters, options, layer_resources(config, options)};
  const double embedding_scale = family.scaled_embedding ? std::sqrt(static_cast<double>(config.dim)) : 1.0;
  const int64_t chunk = options.loss_chunk > 0 ? options.loss_chunk : automatic_loss_chunk(config.vocab_size);

  Model model;
  for (const BlockSpec& block : blocks) {
    switch (block.kind) {
      case BlockKind::embedding:
        model.blocks.push_back(std::make_unique<EmbeddingBlock>(parameters("embedding.weight"),
                                                                options.tensor, embedding_scale));
        break;
      case BlockKind::layer:
        model.blocks.push_back(layer_block(made_for, block));
        break;
      case BlockKind::mtp:
        model.blocks.push_back(std::make_unique<MtpBlock>(parameters, block.name,
                                                          mtp_norm(config, block.ahead - 1),
                                                          head_traits(config, options).norm, options.tensor));
        break;
      case BlockKind::head: {
        Parameter& output = parameters(config.tie_embeddings ? "embedding.weight" : "head.weight");
        model.heads.push_back(
            std::make_unique<LinearCrossEntropyHead>(parameters(mtp_norm(config, block.ahead)), output,
                                                     head_traits(config, options), chunk, options.tensor));
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
