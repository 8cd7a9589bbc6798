// SPDX-License-Identifier: Apache-2.0
#include "stepforge/models/decoder.h"

#include <cmath>
#include <cstddef>
#include <utility>

#include "stepforge/base/error.h"
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

Model make_model(const ModelConfig& config, const ParameterLookup& parameters,
                 const ForwardOptions& options) {
  const AttentionDims dims = attention_dims(config);
  const auto rope = std::make_shared<const RopeTable>(make_rope_table(
      options.context_length, dims.head_dim, config.rope_theta, rope_scaling(config.rope_scaling)));
  const int64_t chunk = options.loss_chunk > 0 ? options.loss_chunk : automatic_loss_chunk(config.vocab_size);

  Model model;
  std::size_t built = 0;  // of options.blocks
  const auto is_next = [&](const std::string& name) {
    if (options.blocks.empty()) return true;
    const bool next = built < options.blocks.size() && options.blocks[built] == name;
    if (next) ++built;
    return next;
  };
  if (is_next("embedding"))
    model.blocks.push_back(std::make_unique<EmbeddingBlock>(parameters("embedding.weight"), options.tensor));
  for (int64_t layer = 0; layer < config.n_layers; ++layer)
    if (is_next(format("layers.{}", layer)))
      model.blocks.push_back(std::make_unique<DenseLayer>(config, dims, parameters, layer, rope, options));
  if (is_next("head")) {
    Parameter& output = parameters(config.tie_embeddings ? "embedding.weight" : "head.weight");
    model.head = std::make_unique<LinearCrossEntropyHead>(parameters("head.norm"), output, config.norm_eps,
                                                          chunk, options.tensor, options.z_loss_weight);
  }
  if (built < options.blocks.size())
    throw Error(format("the model has no block \"{}\", or it is not in order", options.blocks[built]));
  return model;
}

}  // namespace stepforge
