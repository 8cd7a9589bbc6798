// SPDX-License-Identifier: Apache-2.0
#include "stepforge/catalog/hf_config.h"

#include <algorithm>
#include <vector>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/base/json_reader.h"
#include "stepforge/catalog/families.h"
#include "stepforge/catalog/hf_fields.h"
#include "stepforge/catalog/hf_rope.h"
#include "stepforge/catalog/hf_values.h"
#include "stepforge/catalog/hf_window.h"

namespace stepforge {

namespace fs = std::filesystem;

namespace {

const ModelFamily& family_of_file(const JsonReader& reader, const Registry& plugins) {
  if (const ModelFamily* family = find_hf_family(reader["model_type"].text(), plugins)) return *family;
  std::vector<std::string> known;
  for (const ModelFamily& family : model_families()) known.emplace_back(family.hf_model_type);
  for (const ModelFamily& family : plugins.all<ModelFamily>()) known.emplace_back(family.hf_model_type);
  reader.refuse("model_type",
                format("supported model types are {}; is a plug-in missing?", join(known, ", ")));
}

/// `file` with the defaults of the family for the keys that it does not have. A null counts as absent where the
/// model cannot be without.
Json with_defaults(const Json& file, const ModelFamily& family, const std::vector<HfField>& rows) {
  Json filled = Json::parse(family.hf_defaults);
  for (const auto& [key, value] : file.items()) {
    const HfField* field = find_hf_field(rows, key);
    if (!value.is_null() || !filled.contains(key) || (field != nullptr && field->nullable))
      filled[key] = value;
  }
  return filled;
}

/// The key that sets a field which all families have.
std::string_view key_of(const std::vector<HfField>& rows, std::string_view field) {
  const auto row = std::ranges::find(rows, field, &HfField::field);
  if (row == rows.end()) throw UsageError(format("no key of config.json sets model.{}", field));
  return row->key;
}

/// Which layers have an MLP; the number of experts, which has two keys.
void read_experts(const JsonReader& file, const ModelFamily& family, ModelConfig& model) {
  const char* count = "num_local_experts";
  if (has_setting(family, "n_experts") && file.has(count) && file.has("num_experts") &&
      file[count].integer(1) != file["num_experts"].integer(1))
    file.refuse(count, format("differs from num_experts = {}", file["num_experts"].integer(1)));
  if (has_setting(family, "n_experts") && file.has(count)) model.n_experts = file[count].integer(1);

  const char* dense = "mlp_only_layers";
  if (!has_setting(family, "dense_layers") || !file.has(dense)) return;
  const JsonReader list = file[dense];
  for (size_t i = 0; i < list.size(); ++i) {
    const int64_t layer = list.at(i).integer(0);
    if (layer < model.n_layers) model.dense_layers.push_back(layer);
  }
}

/// Whether routers of DeepSeek-V2 choose among groups of experts; if they do not, the groups have no effect.
constexpr const char* kTopkMethod = "topk_method";
constexpr const char* kGreedy = "greedy";

void read_groups(const JsonReader& reader, ModelConfig& model) {
  if (!reader.has(kTopkMethod) || reader[kTopkMethod].text() != kGreedy) return;
  model.n_expert_groups = 1;
  model.groups_per_token = 1;
}

void write_groups(const ModelConfig& model, const ModelFamily& family, Json& config) {
  if (family.traits.router != RouterKind::softmax_groups) return;
  config[kTopkMethod] = model.n_expert_groups == 1 ? kGreedy : "group_limited_greedy";
}

/// Weights of experts may be MXFP4 (checkpoint/mxfp4.h).
void read_quantization(const JsonReader& file, const ModelFamily& family) {
  const char* key = "quantization_config";
  if (!file.has(key) || !find_hf_field(hf_fields(family), key)->accepted.empty()) return;
  if (file[key].text_or("quant_method", "") == "mxfp4") return;
  file[key].refuse(
      "quant_method",
      "the weights are quantized, and only \"mxfp4\" is read; use a BF16 copy of the model (DeepSeek's "
      "fp8 models become one with their fp8_cast_bf16.py), and its config.json without this key");
}

/// A reward model is a classifier with one label.
constexpr std::string_view kClassifierSuffix = "ForSequenceClassification";

void read_head(const JsonReader& file, ModelConfig& model) {
  if (!file.has("architectures") || file["architectures"].size() == 0) return;
  if (!file["architectures"].at(0).text().ends_with(kClassifierSuffix)) return;
  int64_t labels = 2;
  if (file.has("num_labels"))
    labels = file["num_labels"].integer(0);
  else if (file.has("id2label"))
    labels = std::ssize(file["id2label"].object().json());
  if (labels != 1) {
    file.refuse(
        "architectures",
        format("the model tells {} labels apart, and only classifiers of one label, reward models, are read "
               "(num_labels or id2label)",
               labels));
  }
  model.head = HeadKind::score;
}

/// "Qwen3ForSequenceClassification" of "Qwen3ForCausalLM", and of the text model "gemma3_text" "Gemma3TextForSequenceClassification".
std::string classifier_of(const ModelFamily& family) {
  constexpr std::string_view kCausal = "ForCausalLM";
  std::string name(family.hf_architecture);
  if (!name.ends_with(kCausal))
    throw UsageError(
        format("models of the family \"{}\" ({}) have no classifier in transformers", family.name, name));
  name.resize(name.size() - kCausal.size());
  return format("{}{}{}", name, family.hf_model_type.ends_with("_text") ? "Text" : "", kClassifierSuffix);
}

void write_head(const ModelConfig& model, const ModelFamily& family, Json& config) {
  if (!model.scores()) return;
  config["architectures"] = Json::array({classifier_of(family)});
  config["id2label"] = {{"0", "LABEL_0"}};
  config["label2id"] = {{"LABEL_0", 0}};
}

constexpr const char* kTokenIds[] = {"bos_token_id", "eos_token_id"};

bool is_token_id(const Json& value) {
  const auto is_integer = [](const Json& id) { return id.is_number_integer(); };
  return is_integer(value) || (value.is_array() && std::ranges::all_of(value, is_integer));
}

}  // namespace

Json hf_config(const ModelConfig& model, DType dtype, const Json& generation) {
  const ModelFamily& family = family_of(model);
  Config written;
  written.model = model;
  written.model.head_dim = head_size(model);
  if (model.query_pre_attn_scalar == 0) written.model.query_pre_attn_scalar = head_size(model);
  if (model.rope_local_theta == 0) written.model.rope_local_theta = model.rope_theta;
  Json config;
  config["architectures"] = Json::array({std::string(family.hf_architecture)});
  config["model_type"] = std::string(family.hf_model_type);
  for (const HfField& field : hf_fields(family))
    if (!field.field.empty()) config[std::string(field.key)] = field_json(written, field);
  write_window(model, family, config);
  write_groups(model, family, config);
  write_head(model, family, config);
  config["rope_scaling"] = rope_scaling_json(model);
  // A missing value stands for the scaling of published models.
  if (config["rope_scaling"].is_null() && Json::parse(family.hf_defaults).contains("rope_scaling"))
    config["rope_scaling"] = {{"rope_type", "default"}};
  config["attention_dropout"] = 0.0;
  config.update(Json::parse(family.hf_constants));
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

Json with_end_tokens(Json generation, std::span<const int32_t> ends) {
  const Json known = generation.is_object() ? generation.value("eos_token_id", Json()) : Json();
  Json ids = known.is_array() ? known : known.is_null() ? Json::array() : Json::array({known});
  const size_t before = ids.size();
  for (const int32_t id : ends)
    if (std::ranges::find(ids, Json(id)) == ids.end()) ids.push_back(id);
  if (ids.size() == before) return generation;
  if (generation.is_null()) generation = {{"_from_model_config", true}};
  generation["eos_token_id"] = ids.size() == 1 ? ids[0] : ids;
  return generation;
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

ModelConfig model_from_hf_config(const Json& json, const std::string& source,
                                 const std::shared_ptr<const Registry>& plugins) {
  Config config;
  ModelConfig& model = config.model;
  model.plugins = plugins;
  const JsonReader file(json, source);
  const ModelFamily& family = family_of_file(file, plugins_of(model));
  const std::vector<HfField> rows = hf_fields(family);
  const Json filled = with_defaults(json, family, rows);
  const JsonReader reader(filled, source);
  model.family = family.name;
  for (const char* field : {"dim", "n_layers", "n_heads", "ffn_dim", "vocab_size"})
    reader[key_of(rows, field)].integer(1);
  read_fields(reader, rows, config);
  read_rope(file.has("rope_scaling") || file.has("rope_parameters") ? file : reader, family, config);
  read_quantization(file, family);
  read_window(reader, family, model);
  read_experts(file, family, model);
  read_groups(reader, model);
  read_head(file, model);

  const std::string_view kv_heads = key_of(rows, "n_kv_heads");
  if (!reader.has(kv_heads)) model.n_kv_heads = model.n_heads;
  if (!has_setting(family, "head_dim"))
    model.head_dim = 0;
  else if (!reader.has(key_of(rows, "head_dim")))
    model.head_dim = model.dim / model.n_heads;
  if (model.n_heads % model.n_kv_heads != 0)
    reader.refuse(kv_heads, format("must divide {} = {}", key_of(rows, "n_heads"), model.n_heads));
  if (!has_latents(model) && (model.head_dim < 2 || model.head_dim % 2 != 0)) {
    reader.refuse("head_dim",
                  format("the head size is {}, but the rotary embedding needs an even one", model.head_dim));
  }
  return model;
}

ModelConfig hf_model_config(const fs::path& folder, const std::shared_ptr<const Registry>& plugins) {
  const fs::path path = folder / "config.json";
  return model_from_hf_config(read_json_file(path), path.string(), plugins);
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
