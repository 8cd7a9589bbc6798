// SPDX-License-Identifier: Apache-2.0
#include "stepforge/models/decoder.h"

#include <cmath>
#include <utility>

#include "stepforge/base/format.h"
#include "stepforge/catalog/decoder_spec.h"
#include "stepforge/nn/layers.h"

namespace stepforge {

namespace {

RopeScaling rope_scaling(const RopeScalingConfig& config) {
  if (config.type != RopeScalingType::llama3) return {};
  return {RopeScaling::Kind::llama3, config.factor, config.low_freq_factor, config.high_freq_factor,
          config.original_max_position};
}

AttentionShape attention_shape(const AttentionDims& dims) {
  return {dims.heads, dims.kv_heads, dims.head_dim, 1.0 / std::sqrt(static_cast<double>(dims.head_dim))};
}

/// Attention and MLP, each a region that may be recomputed.
class DenseLayer : public Block {
 public:
  DenseLayer(const ModelConfig& config, const AttentionDims& dims, const ParameterLookup& parameters,
             int64_t layer, std::shared_ptr<const RopeTable> rope, const ForwardOptions& options)
      : rope_(std::move(rope)),
        attention_(parameters, format("layers.{}.attention", layer), attention_shape(dims), config.norm_eps,
                   dims.qk_norm, *rope_, layer, options.tensor, options.exchange),
        mlp_(parameters, format("layers.{}.mlp", layer), config.norm_eps, layer, options.tensor) {}

  Bundle forward(const Bundle& inputs, const Context& context) override {
    // Captured by value: a recomputed region runs its body again after this call has returned.
    const auto attention = [this, context](const at::Tensor& x) { return attention_.forward(x, context); };
    const auto mlp = [this, context](const at::Tensor& x) { return mlp_.forward(x, context); };
    return {recompute_region(context, "mlp", mlp,
                             recompute_region(context, "attention", attention, inputs.at(0)))};
  }

 private:
  std::shared_ptr<const RopeTable> rope_;
  AttentionLayer attention_;
  MlpLayer mlp_;
};

}  // namespace

Model make_model(const ModelConfig& config, const std::vector<BlockSpec>& blocks,
                 const ParameterLookup& parameters, const ForwardOptions& options) {
  const AttentionDims dims = attention_dims(config);
  const auto rope = std::make_shared<const RopeTable>(make_rope_table(
      options.context_length, dims.head_dim, config.rope_theta, rope_scaling(config.rope_scaling)));
  const int64_t chunk = options.loss_chunk > 0 ? options.loss_chunk : automatic_loss_chunk(config.vocab_size);

  Model model;
  for (const BlockSpec& block : blocks) {
    switch (block.kind) {
      case BlockKind::embedding:
        model.blocks.push_back(
            std::make_unique<EmbeddingBlock>(parameters("embedding.weight"), options.tensor));
        break;
      case BlockKind::layer:
        model.blocks.push_back(
            std::make_unique<DenseLayer>(config, dims, parameters, block.layer, rope, options));
        break;
      case BlockKind::head: {
        Parameter& output = parameters(config.tie_embeddings ? "embedding.weight" : "head.weight");
        model.heads.push_back(std::make_unique<LinearCrossEntropyHead>(
            parameters("head.norm"), output, config.norm_eps, chunk, options.tensor, options.z_loss_weight));
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
