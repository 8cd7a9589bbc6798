#include "stepforge/catalog/decoder_spec.h"

#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/catalog/families.h"

namespace stepforge {

AttentionDims attention_dims(const ModelConfig& config) {
  const int64_t head_dim = config.head_dim > 0 ? config.head_dim : config.dim / config.n_heads;
  return {config.dim, config.n_heads, config.n_kv_heads, head_dim, find_family(config.family).qk_norm};
}

namespace {

/// Adds a unit with the layers' parameters and a block that uses it.
void add_block(ModelSpec& spec, const std::string& name, BlockKind kind, int layer,
               std::vector<LayerSpec> layers) {
  UnitSpec unit;
  unit.name = name;
  BlockSpec block;
  block.name = name;
  block.kind = kind;
  block.layer = layer;
  block.units.push_back(static_cast<int>(spec.units.size()));
  for (auto& part : layers) {
    for (auto& parameter : part.parameters) unit.parameters.push_back(std::move(parameter));
    block.regions.push_back(std::move(part.cost));
  }
  if (kind != BlockKind::embedding) block.inputs.push_back({"hidden", spec.width});
  if (kind != BlockKind::head) block.outputs.push_back({"hidden", spec.width});
  spec.units.push_back(std::move(unit));
  spec.blocks.push_back(std::move(block));
}

}  // namespace

ModelSpec model_spec(const ModelConfig& config, int64_t loss_chunk) {
  if (config.vocab_size <= 0) throw UsageError("model.vocab_size is not set and no tokenizer gives it");
  const AttentionDims dims = attention_dims(config);
  const bool dropout = config.dropout > 0.0;
  if (loss_chunk <= 0) loss_chunk = automatic_loss_chunk(config.vocab_size);

  ModelSpec spec;
  spec.family = config.family;
  spec.vocab_size = config.vocab_size;
  spec.width = config.dim;
  spec.layers = config.n_layers;
  spec.max_position = config.max_position;
  spec.kv_heads = config.n_kv_heads;
  spec.head_dim = dims.head_dim;
  spec.attention_width = dims.query_width();

  add_block(spec, "embedding", BlockKind::embedding, -1,
            {embedding_layer("embedding", "model.embed_tokens.weight", config.vocab_size, config.dim)});
  for (int64_t layer = 0; layer < config.n_layers; ++layer) {
    const std::string name = format("layers.{}", layer);
    const std::string hf_prefix = format("model.layers.{}.", layer);
    const double depth_std = residual_std(layer);
    add_block(spec, name, BlockKind::layer, static_cast<int>(layer),
              {attention_layer(name + ".attention", hf_prefix, dims, depth_std, dropout),
               mlp_layer(name + ".mlp", hf_prefix, config.dim, config.ffn_dim, depth_std, dropout)});
  }
  add_block(spec, "head", BlockKind::head, -1,
            {head_layer("head", config.dim, config.vocab_size, config.tie_embeddings, loss_chunk)});
  if (config.tie_embeddings) {
    // The head reads the embedding's unit: one copy, one summed gradient.
    spec.blocks.back().units.push_back(0);
    spec.ties.push_back({"embedding.weight", "head", "lm_head.weight"});
  }
  return spec;
}

}  // namespace stepforge
