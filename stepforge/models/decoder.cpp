// SPDX-License-Identifier: Apache-2.0
#include "stepforge/models/decoder.h"

#include <memory>
#include <utility>

#include "stepforge/catalog/decoder_spec.h"
#include "stepforge/catalog/families.h"
#include "stepforge/nn/make_model.h"

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

/// The rotary tables of all layers, of which those with a window may have their own, and the exchanges.
std::shared_ptr<const LayerResources> layer_resources(const ModelConfig& config,
                                                      const ForwardOptions& options) {
  const int64_t positions = options.context_length;
  const int64_t row_length = options.row_length > 0 ? options.row_length : positions;
  const auto table = [&](double theta, const RopeScaling& scaling) {
    const int64_t size = has_latents(config) ? config.qk_rope_head_dim : head_size(config);
    return std::make_shared<const RopeTable>(make_rope_table(positions, size, theta, scaling));
  };
  LayerResources made{.tensor = options.tensor,
                      .exchange = options.exchange,
                      .loss = {options.z_loss_weight, options.label_smoothing, options.loss}};
  made.rope = table(config.rope_theta, rope_scaling(config.rope_scaling, row_length));
  made.local_rope = config.rope_local_theta > 0.0 ? table(config.rope_local_theta, {}) : made.rope;
  return std::make_shared<const LayerResources>(std::move(made));
}

}  // namespace

Model make_model(const ModelConfig& config, const std::vector<BlockSpec>& blocks,
                 const ParameterLookup& parameters, const ForwardOptions& options) {
  return make_model(blocks, parameters, layer_resources(config, options));
}

Model make_model(const ModelConfig& config, const ParameterLookup& parameters,
                 const ForwardOptions& options) {
  return make_model(config, model_spec(config, options.loss_chunk).blocks, parameters, options);
}

}  // namespace stepforge
