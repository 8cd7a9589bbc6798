// SPDX-License-Identifier: Apache-2.0
// The model families, one row of a table each: names, and the traits in which the dense decoders differ. The
// specification, the forward code and config.json follow from them.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "stepforge/base/registry.h"
#include "stepforge/catalog/expert_layers.h"
#include "stepforge/catalog/hf_fields.h"
#include "stepforge/catalog/latent_layer.h"
#include "stepforge/config/config.h"
#include "stepforge/modelspec/layer_traits.h"
#include "stepforge/modelspec/rope_spec.h"

namespace stepforge {

/// A value of model.family; registered by plug-ins. Texts and functions must last as long as the plug-in is loaded.
struct ModelFamily {
  static constexpr std::string_view kKind = "model family";
  std::string_view name;                  ///< model.family
  std::string_view hf_model_type;         ///< "model_type" in config.json
  std::string_view hf_architecture = {};  ///< "architectures" in config.json
  /// The traits of every layer; layer_traits() adds what the configuration decides.
  LayerTraits traits = {};
  bool scaled_embedding = false;            ///< the rows of the embedding are multiplied by sqrt(dim)
  ExpertNames (*expert_names)() = nullptr;  ///< null: its models have no experts
  bool normalized_experts = false;          ///< the weights of a token's experts sum to 1 in all its models
  bool two_ropes = false;                   ///< layers with a window have a rotary embedding of their own
  bool further_layers = false;  ///< files may have more layers of multi-token prediction than the model
  /// The keys of [model] and config.json that its models have (hf_fields.h): those of the built-in family named here, or of
  /// its own name if empty; and before them, rows of a plug-in.
  std::string_view hf_keys_like = {};
  std::span<const HfField> hf_keys = {};
  /// JSON objects: the values that transformers gives to keys missing from config.json, and what an export writes
  /// besides the fields of the model.
  std::string_view hf_defaults = "{}";
  std::string_view hf_constants = "{}";
  /// If config.json does not say which layers have a window, every n-th has none. 0: the family has no such rule.
  int64_t hf_full_every = 0;
};

/// The built-in families.
std::span<const ModelFamily> model_families();

/// The built-in or plug-in family of this name. Throws UsageError that lists the families if there is none.
const ModelFamily& find_family(std::string_view name, const Registry& plugins = {});
const ModelFamily& family_of(const ModelConfig& model);

/// The registry of model.plugins; an empty one if that is null.
const Registry& plugins_of(const ModelConfig& model);

/// The family with this model_type; nullptr if there is none. Throws UsageError if there are several.
const ModelFamily* find_hf_family(std::string_view model_type, const Registry& plugins = {});

/// The size of a head of queries and keys. head_dim is dim / n_heads if model.head_dim is 0; with latents it has two parts.
int64_t head_size(const ModelConfig& model);

/// The kind of attention of each layer.
std::vector<AttentionKind> attention_kinds(const ModelConfig& model);

/// Whether the layer has experts: by moe_layer_freq, first_dense_layers and dense_layers, in a family that has them. Layers of
/// multi-token prediction do.
bool has_experts(const ModelConfig& model, int64_t layer);

/// Whether its attention has latents, and their sizes.
bool has_latents(const ModelConfig& model);
LatentDims latent_dims(const ModelConfig& model);

/// The sizes of its layers with experts.
ExpertDims expert_dims(const ModelConfig& model);

/// Whether the weights of a token's experts are divided by their sum.
bool normalizes_experts(const ModelConfig& model);

/// Of a layer with experts.
RouterSettings router_settings(const ModelConfig& model, const LayerTraits& traits);

/// The rotary embedding of its layers, and that of layers with a window if they have their own; otherwise of size 0.
RopeSpec rope_spec(const ModelConfig& model);
RopeSpec local_rope_spec(const ModelConfig& model);

/// What the rows of the embedding are multiplied by.
double embedding_factor(const ModelConfig& model);

/// Whether its routers have losses in training.
bool has_router_losses(const ModelConfig& model);

/// The traits of one layer: those of the family with what `model` decides. Throws UsageError for an unknown family.
LayerTraits layer_traits(const ModelConfig& model, int64_t layer);

}  // namespace stepforge
