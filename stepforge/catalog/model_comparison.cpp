// SPDX-License-Identifier: Apache-2.0
#include "stepforge/catalog/model_comparison.h"

#include "stepforge/base/format.h"
#include "stepforge/catalog/families.h"
#include "stepforge/config/schema_docs.h"
#include "stepforge/config/toml_text.h"

namespace stepforge {

namespace {

/// Sets fields that do not change shapes or computation to fixed values, and writes out what others imply.
Config comparable(const ModelConfig& model) {
  Config config;
  config.model = model;
  config.model.head_dim = head_size(model);
  config.model.layer_types = attention_kinds(model);
  if (model.query_pre_attn_scalar == 0) config.model.query_pre_attn_scalar = head_size(model);
  config.model.dropout = 0.0;
  config.model.score_init_std = ModelConfig().score_init_std;
  config.model.freeze.clear();
  config.model.frozen_dtype = FrozenDType::fp32;
  config.model.double_quantization = false;
  config.model.router_aux_loss_weight = 0.0;
  config.model.router_z_loss_weight = 0.0;
  config.model.mtp_loss_weight = 1.0;
  config.model.max_position = 1;
  if (model.rope_scaling.type == RopeScalingType::none) config.model.rope_scaling = {};
  return config;
}

}  // namespace

std::vector<std::string> model_differences(const ModelConfig& there, const ModelConfig& here) {
  Config left = comparable(there);
  Config right = comparable(here);
  const auto value_text = [](Config& config, const std::string& path) {
    const FieldRef ref = find_field(config_schema(), &config, path);
    return toml_value(*ref.field, slot_of(ref));
  };
  std::vector<std::string> differences;
  for (const FieldInfo& info : all_fields()) {
    if (info.section != "model" || info.type == FieldType::table) continue;
    const std::string before = value_text(left, info.path());
    const std::string now = value_text(right, info.path());
    if (before != now) differences.push_back(format("{}: {} there, {} here", info.path(), before, now));
  }
  return differences;
}

}  // namespace stepforge
