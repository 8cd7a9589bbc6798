// SPDX-License-Identifier: Apache-2.0
#include "stepforge/catalog/hf_rope.h"

#include <algorithm>
#include <string>
#include <vector>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/catalog/hf_values.h"

namespace stepforge {

namespace {

constexpr std::string_view kFullAttention = "full_attention";
constexpr std::string_view kSlidingAttention = "sliding_attention";
constexpr std::string_view kOriginalPositions = "original_max_position_embeddings";

/// The key of the object that holds the rotary settings, "" if there is none. transformers 5 writes
/// rope_parameters but prefers rope_scaling; older versions know only rope_scaling. If both exist, they must
/// be equal.
std::string rope_object(const JsonReader& reader) {
  std::vector<std::string> keys;
  for (const char* key : {"rope_scaling", "rope_parameters"})
    if (reader.has(key) && !reader[key].object().json().empty()) keys.emplace_back(key);
  if (keys.size() == 2 && reader[keys[0]].json() != reader[keys[1]].json())
    reader.refuse("rope_scaling", "differs from \"rope_parameters\"; remove the wrong one");
  return keys.empty() ? "" : keys[0];
}

/// Versions of transformers disagree on whether the top-level value or the one inside the object takes
/// effect.
void require_equal(const JsonReader& file, const JsonReader& rope, std::string_view outside,
                   std::string_view inside) {
  if (!file.has(outside) || !rope.has(inside) || file[outside].json() == rope[inside].json()) return;
  rope.refuse(inside, format("differs from {} outside this object; remove the wrong one",
                             json_excerpt(file[outside].json())));
}

/// The keys of rotary settings that a type reads, besides rope_theta. `needed` must be there.
struct RopeType {
  RopeScalingType type;
  std::string_view name;
  std::vector<std::string_view> needed = {};
  std::vector<std::string_view> optional = {};

  bool reads(std::string_view key) const {
    return std::ranges::count(needed, key) + std::ranges::count(optional, key) > 0;
  }
};

const std::vector<RopeType>& rope_types() {
  static const std::vector<RopeType> types = {{RopeScalingType::none, "default"},
                                              {RopeScalingType::linear, "linear", {"factor"}},
                                              {RopeScalingType::dynamic, "dynamic", {"factor"}},
                                              {RopeScalingType::llama3,
                                               "llama3",
                                               {"factor", "low_freq_factor", "high_freq_factor"},
                                               {kOriginalPositions}},
                                              {RopeScalingType::yarn,
                                               "yarn",
                                               {"factor"},
                                               {kOriginalPositions, "attention_factor", "beta_fast",
                                                "beta_slow", "mscale", "mscale_all_dim", "truncate"}},
                                              {RopeScalingType::longrope,
                                               "longrope",
                                               {"short_factor", "long_factor"},
                                               {"factor", kOriginalPositions, "attention_factor"}}};
  return types;
}

const RopeType& rope_type_of(RopeScalingType type) {
  return *std::ranges::find(rope_types(), type, &RopeType::type);
}

const RopeType& rope_type_of(const JsonReader& rope) {
  const char* key = rope.has("rope_type") || !rope.has("type") ? "rope_type" : "type";
  const std::string name = rope.text_or(key, "default");
  std::vector<std::string> names;
  for (const RopeType& type : rope_types()) {
    if (type.name == name) return type;
    names.push_back(format("\"{}\"", type.name));
  }
  rope.refuse(key, format("only {} are supported", join(names, ", ")));
}

/// Refuses settings that `type` does not read: a file that has them means another type, or was made for a program that
/// reads more. Files of every type may state the number of positions of the original training.
void refuse_unread(const JsonReader& rope, const RopeType& type) {
  for (const HfField& field : hf_rope_fields()) {
    const bool of_type = field.field.empty() || field.field == "rope_theta" || type.reads(field.key);
    if (of_type || field.key == kOriginalPositions || !rope.has(field.key)) continue;
    rope.refuse(field.key,
                format("is not read with \"rope_type\": \"{}\"; remove it, or change the type", type.name));
  }
}

/// Reads one set of rotary settings like RotaryEmbeddingConfigMixin of transformers (modeling_rope_utils.py): into
/// rope_theta and rope_scaling. `file`: the whole file.
void read_rope_settings(const JsonReader& file, const JsonReader& rope, Config& config) {
  const RopeType& type = rope_type_of(rope);
  Config read = config;
  read_fields(rope, hf_rope_fields(), read);
  require_equal(file, rope, "rope_theta", "rope_theta");
  refuse_unread(rope, type);
  config.model.rope_theta = read.model.rope_theta;
  if (type.type == RopeScalingType::none) return;

  for (const std::string_view needed : type.needed)
    if (!rope[needed].json().is_array()) rope[needed].number();
  RopeScalingConfig& scaling = read.model.rope_scaling;
  if (type.reads(kOriginalPositions)) {
    require_equal(file, rope, kOriginalPositions, kOriginalPositions);
    if (!rope.has(kOriginalPositions)) scaling.original_max_position = config.model.max_position;
    if (file.has(kOriginalPositions))
      set_field(file[kOriginalPositions], "rope_scaling.original_max_position", read);
  }
  if (type.type == RopeScalingType::longrope && !rope.has("factor")) {
    scaling.factor = std::max(1.0, static_cast<double>(config.model.max_position) /
                                       static_cast<double>(scaling.original_max_position));
  }
  // What the type does not read stays at its default.
  Config used = config;
  used.model.rope_scaling.type = type.type;
  for (const HfField& field : hf_rope_fields())
    if (type.reads(field.key)) copy_field(read, used, field.field);
  if (type.type == RopeScalingType::llama3 && scaling.low_freq_factor >= scaling.high_freq_factor)
    rope.refuse("high_freq_factor", format("must be above low_freq_factor = {}", scaling.low_freq_factor));
  config.model.rope_scaling = used.model.rope_scaling;
}

}  // namespace

void read_rope(const JsonReader& file, const ModelFamily& family, Config& config) {
  const std::string key = rope_object(file);
  if (key.empty()) return;
  const JsonReader rope = file[key];
  if (!family.two_ropes) {
    read_rope_settings(file, rope, config);
    return;
  }
  if (key == "rope_scaling") {
    read_rope_settings(file, rope, config);
  } else {
    for (const auto& [name, value] : rope.json().items())
      if (name != kFullAttention && name != kSlidingAttention)
        file.refuse(key,
                    format("has \"{}\" outside \"{}\" and \"{}\"", name, kFullAttention, kSlidingAttention));
    if (rope.has(kFullAttention)) read_rope_settings(file, rope[kFullAttention], config);
  }
  if (!config.model.rope_scaling.truncate)
    file.refuse(key, "transformers does not use \"truncate\" in models with two sets of rotary settings");
  if (!rope.has(kSlidingAttention)) return;
  const JsonReader local = rope[kSlidingAttention];
  if (rope_type_of(local).type != RopeScalingType::none)
    local.refuse("rope_type", "only \"default\" is supported in layers with a window");
  require_equal(file, local, "rope_local_base_freq", "rope_theta");
  Config read = config;
  read_fields(local, hf_rope_fields(), read);
  refuse_unread(local, rope_type_of(RopeScalingType::none));
  if (local.has("rope_theta")) config.model.rope_local_theta = read.model.rope_theta;
}

bool reads_rope_option(RopeScalingType type, std::string_view option) {
  const std::string field = format("rope_scaling.{}", option);
  return std::ranges::any_of(hf_rope_fields(), [&](const HfField& row) {
    return row.field == field && rope_type_of(type).reads(row.key);
  });
}

Json rope_scaling_json(const ModelConfig& model) {
  const RopeType& type = rope_type_of(model.rope_scaling.type);
  if (type.type == RopeScalingType::none) return nullptr;
  Json json = {{"rope_type", std::string(type.name)}};
  Config written;
  written.model = model;
  for (const HfField& field : hf_rope_fields()) {
    if (!type.reads(field.key)) continue;
    const Json value = field_json(written, field);
    if (!value.is_null()) json[std::string(field.key)] = value;
  }
  return json;
}

}  // namespace stepforge
