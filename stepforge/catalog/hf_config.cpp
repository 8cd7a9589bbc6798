// SPDX-License-Identifier: Apache-2.0
#include "stepforge/catalog/hf_config.h"

#include <algorithm>
#include <vector>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/base/json_reader.h"
#include "stepforge/catalog/decoder_spec.h"
#include "stepforge/catalog/families.h"
#include "stepforge/catalog/hf_fields.h"
#include "stepforge/config/schema.h"

namespace stepforge {

namespace fs = std::filesystem;

namespace {

FieldRef find_model_field(Config& config, std::string_view field) {
  return find_field(config_schema(), &config, format("model.{}", field));
}

/// Sets the field `name` of [model]; refuses values outside the range in its schema.
void set_field(const JsonReader& value, std::string_view name, Config& config) {
  const FieldRef ref = find_model_field(config, name);
  const FieldSlot slot = slot_of(ref);
  if (auto* const* boolean = std::get_if<bool*>(&slot)) {
    **boolean = value.boolean();
    return;
  }
  if (auto* const* integer = std::get_if<int64_t*>(&slot))
    **integer = value.integer(1);
  else
    *std::get<double*>(slot) = value.number();
  const FieldRules& rules = ref.field->rules;
  if (!in_range(rules, value.number())) value.refuse(format("must be {}", range_text(rules)));
}

void require_accepted(const JsonReader& object, const HfField& field) {
  const Json accepted = Json::parse(field.accepted);
  const Json& value = object.json().at(field.key);
  const auto is_accepted = [&](const Json& item) { return std::ranges::count(accepted, item) > 0; };
  if (!(value.is_array() ? std::ranges::all_of(value, is_accepted) : is_accepted(value)))
    object.refuse(field.key, format("only {} is supported", accepted.front().dump()));
}

/// Sets the fields that `table` gives for the keys of the object; refuses keys that are not in it.
void read_fields(const JsonReader& object, std::span<const HfField> table, Config& config) {
  for (const auto& [key, value] : object.object().json().items()) {
    const auto field = std::ranges::find(table, key, &HfField::key);
    if (field == table.end()) {
      if (value.is_null()) continue;
      object.refuse(key,
                    "unknown setting, which may change what the model computes; remove it if transformers "
                    "ignores it");
    }
    if (!field->accepted.empty()) require_accepted(object, *field);
    if (!field->field.empty() && !value.is_null()) set_field(object[key], field->field, config);
  }
}

const ModelFamily& family_of(const JsonReader& reader) {
  const std::string model_type = reader["model_type"].text();
  std::vector<std::string> known;
  for (const ModelFamily& family : model_families()) {
    if (family.hf_model_type == model_type) return family;
    known.emplace_back(family.hf_model_type);
  }
  reader.refuse("model_type", format("supported model types are {}", join(known, ", ")));
}

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
void require_equal(const JsonReader& reader, const JsonReader& rope, std::string_view key) {
  if (!reader.has(key) || !rope.has(key) || reader[key].json() == rope[key].json()) return;
  rope.refuse(key, format("differs from {} outside this object; remove the wrong one",
                          json_excerpt(reader[key].json())));
}

/// Reads the rotary settings like RotaryEmbeddingConfigMixin of transformers (modeling_rope_utils.py).
void read_rope(const JsonReader& reader, Config& config) {
  const std::string key = rope_object(reader);
  if (key.empty()) return;
  const JsonReader rope = reader[key];
  Config read = config;
  const char* type_key = rope.has("rope_type") || !rope.has("type") ? "rope_type" : "type";
  const std::string type = rope.text_or(type_key, "default");
  if (type != "default" && type != "llama3")
    rope.refuse(type_key, R"(only "default" and "llama3" are supported)");
  read_fields(rope, hf_rope_fields(), read);
  require_equal(reader, rope, "rope_theta");
  config.model.rope_theta = read.model.rope_theta;
  if (type == "default") return;

  constexpr const char* kOriginal = "original_max_position_embeddings";
  require_equal(reader, rope, kOriginal);
  for (const char* needed : {"factor", "low_freq_factor", "high_freq_factor"}) rope[needed].number();
  RopeScalingConfig& scaling = read.model.rope_scaling;
  scaling.type = RopeScalingType::llama3;
  if (!rope.has(kOriginal)) scaling.original_max_position = config.model.max_position;
  if (reader.has(kOriginal)) set_field(reader[kOriginal], "rope_scaling.original_max_position", read);
  if (scaling.low_freq_factor >= scaling.high_freq_factor)
    rope.refuse("high_freq_factor", format("must be above low_freq_factor = {}", scaling.low_freq_factor));
  config.model.rope_scaling = scaling;
}

Json rope_scaling_json(const RopeScalingConfig& scaling) {
  if (scaling.type == RopeScalingType::none) return nullptr;
  return {{"rope_type", "llama3"},
          {"factor", scaling.factor},
          {"low_freq_factor", scaling.low_freq_factor},
          {"high_freq_factor", scaling.high_freq_factor},
          {"original_max_position_embeddings", scaling.original_max_position}};
}

constexpr const char* kTokenIds[] = {"bos_token_id", "eos_token_id"};

bool is_token_id(const Json& value) {
  const auto is_integer = [](const Json& id) { return id.is_number_integer(); };
  return is_integer(value) || (value.is_array() && std::ranges::all_of(value, is_integer));
}

}  // namespace

Json hf_config(const ModelConfig& model, DType dtype, const Json& generation) {
  const ModelFamily& family = find_family(model.family);
  Config written;
  written.model = model;
  written.model.head_dim = attention_dims(model).head_dim;
  Json config;
  config["architectures"] = Json::array({std::string(family.hf_architecture)});
  config["model_type"] = std::string(family.hf_model_type);
  for (const HfField& field : hf_fields()) {
    if (field.field.empty()) break;
    std::visit(
        [&](auto slot) {
          if constexpr (std::is_pointer_v<decltype(slot)>) config[std::string(field.key)] = *slot;
        },
        slot_of(find_model_field(written, field.field)));
  }
  config["rope_scaling"] = rope_scaling_json(model.rope_scaling);
  config["hidden_act"] = "silu";
  config["attention_bias"] = false;
  config["attention_dropout"] = 0.0;
  for (const char* key : kTokenIds) config[key] = generation.value(key, Json(nullptr));
  config["torch_dtype"] = std::string(torch_dtype_name(dtype));
  config["use_cache"] = true;
  return config;
}

Json hf_generation(const Json& generation, const Json& config, const std::string& source) {
  Json result = JsonReader(generation, source).object().json();
  for (const char* key : kTokenIds) {
    if (result.value(key, Json(nullptr)).is_null()) result[key] = config.value(key, Json(nullptr));
    if (result[key].is_null())
      result.erase(key);
    else if (!is_token_id(result[key]))
      JsonReader(result, source).refuse(key, "expected a token id or a list of them");
  }
  return result;
}

Json hf_generation_config(Json generation, std::optional<int32_t> bos, std::optional<int32_t> eos) {
  if (generation.is_null()) generation = {{"_from_model_config", true}};
  const auto fill = [&](const char* key, std::optional<int32_t> id) {
    if (!generation.contains(key)) generation[key] = id ? Json(*id) : Json(nullptr);
  };
  fill("bos_token_id", bos);
  fill("eos_token_id", eos);
  return generation;
}

ModelConfig model_from_hf_config(const Json& json, const std::string& source) {
  const JsonReader reader(json, source);
  const ModelFamily& family = family_of(reader);
  Config config;
  ModelConfig& model = config.model;
  model.family = family.name;
  model.norm_eps = 1e-6;
  model.max_position = family.hf_max_position;
  for (const char* key :
       {"hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size"}) {
    reader[key].integer(1);
  }
  read_fields(reader, hf_fields(), config);
  read_rope(reader, config);

  const char* kv_heads = "num_key_value_heads";
  if (!reader.has(kv_heads)) {
    model.n_kv_heads =
        json.contains(kv_heads) || family.hf_kv_heads == 0 ? model.n_heads : family.hf_kv_heads;
  }
  if (!reader.has("head_dim"))
    model.head_dim = family.hf_head_dim == 0 ? model.dim / model.n_heads : family.hf_head_dim;
  if (model.n_heads % model.n_kv_heads != 0)
    reader.refuse(kv_heads, format("must divide num_attention_heads = {}", model.n_heads));
  if (model.head_dim < 2 || model.head_dim % 2 != 0) {
    reader.refuse("head_dim",
                  format("the head size is {}, but the rotary embedding needs an even one", model.head_dim));
  }
  return model;
}

ModelConfig hf_model_config(const fs::path& folder) {
  const fs::path path = folder / "config.json";
  return model_from_hf_config(read_json_file(path), path.string());
}

Json read_generation_config(const fs::path& folder) {
  const auto read = [&](const char* name) {
    return fs::exists(folder / name) ? read_json_file(folder / name) : Json();
  };
  const Json generation = read(kGenerationFileName);
  const Json config = read("config.json");
  if (generation.is_null() && config.is_null()) return nullptr;
  return hf_generation(generation.is_null() ? Json::object() : generation,
                       config.is_null() ? Json::object() : config, folder.string());
}

}  // namespace stepforge
