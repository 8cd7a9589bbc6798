#include "stepforge/catalog/hf_config.h"

#include <vector>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/catalog/decoder_spec.h"
#include "stepforge/catalog/families.h"

namespace stepforge {

namespace {

/// Typed access to one JSON object with errors that name file and key.
class Reader {
 public:
  Reader(const Json& object, const std::string& source) : object_(object), source_(source) {
    if (!object_.is_object()) throw FormatError(format("{}: expected a JSON object", source_));
  }

  bool has(const char* key) const { return object_.contains(key) && !object_.at(key).is_null(); }

  int64_t integer(const char* key, int64_t fallback = missing) const {
    if (!has(key)) return absent(key, fallback);
    const Json& value = object_.at(key);
    if (!value.is_number_integer() || value.get<int64_t>() <= 0) wrong(key, "a positive integer");
    return value.get<int64_t>();
  }

  double number(const char* key, double fallback) const {
    if (!has(key)) return fallback;
    if (!object_.at(key).is_number()) wrong(key, "a number");
    return object_.at(key).get<double>();
  }

  bool boolean(const char* key, bool fallback) const {
    if (!has(key)) return fallback;
    if (!object_.at(key).is_boolean()) wrong(key, "true or false");
    return object_.at(key).get<bool>();
  }

  std::string text(const char* key, const std::string& fallback) const {
    if (!has(key)) return fallback;
    if (!object_.at(key).is_string()) wrong(key, "a string");
    return object_.at(key).get<std::string>();
  }

  const Json& at(const char* key) const { return object_.at(key); }

  [[noreturn]] void refuse(const char* key, const std::string& why) const {
    throw FormatError(
        format("{}: \"{}\" = {}: {}", source_, key, has(key) ? object_.at(key).dump() : "absent", why));
  }

 private:
  static constexpr int64_t missing = -1;

  int64_t absent(const char* key, int64_t fallback) const {
    if (fallback == missing) throw FormatError(format("{}: \"{}\" is missing", source_, key));
    return fallback;
  }
  [[noreturn]] void wrong(const char* key, const char* expected) const {
    refuse(key, format("expected {}", expected));
  }

  const Json& object_;
  std::string source_;
};

RopeScalingConfig read_rope_scaling(const Json& object, const std::string& source) {
  const Reader reader(object, source + ": rope_scaling");
  RopeScalingConfig scaling;
  const std::string type = reader.text("rope_type", reader.text("type", "default"));
  if (type == "default") return scaling;
  if (type != "llama3") reader.refuse("rope_type", "only \"default\" and \"llama3\" are supported");
  scaling.type = RopeScalingType::llama3;
  scaling.factor = reader.number("factor", scaling.factor);
  scaling.low_freq_factor = reader.number("low_freq_factor", scaling.low_freq_factor);
  scaling.high_freq_factor = reader.number("high_freq_factor", scaling.high_freq_factor);
  scaling.original_max_position =
      reader.integer("original_max_position_embeddings", scaling.original_max_position);
  return scaling;
}

Json rope_scaling_json(const RopeScalingConfig& scaling) {
  if (scaling.type == RopeScalingType::none) return nullptr;
  return {{"rope_type", choice_name(scaling.type)},
          {"factor", scaling.factor},
          {"low_freq_factor", scaling.low_freq_factor},
          {"high_freq_factor", scaling.high_freq_factor},
          {"original_max_position_embeddings", scaling.original_max_position}};
}

Json token_or_null(int64_t id) {
  return id >= 0 ? Json(id) : Json(nullptr);
}

}  // namespace

Json hf_config(const ModelConfig& model, DType dtype, int64_t bos, int64_t eos) {
  const ModelFamily& family = find_family(model.family);
  Json config;
  config["architectures"] = Json::array({std::string(family.hf_architecture)});
  config["model_type"] = std::string(family.hf_model_type);
  config["hidden_size"] = model.dim;
  config["num_hidden_layers"] = model.n_layers;
  config["num_attention_heads"] = model.n_heads;
  config["num_key_value_heads"] = model.n_kv_heads;
  config["head_dim"] = attention_dims(model).head_dim;
  config["intermediate_size"] = model.ffn_dim;
  config["vocab_size"] = model.vocab_size;
  config["hidden_act"] = "silu";
  config["max_position_embeddings"] = model.max_position;
  config["rms_norm_eps"] = model.norm_eps;
  config["rope_theta"] = model.rope_theta;
  config["rope_scaling"] = rope_scaling_json(model.rope_scaling);
  config["tie_word_embeddings"] = model.tie_embeddings;
  config["attention_bias"] = false;
  config["attention_dropout"] = 0.0;
  if (family.name == "llama") config["mlp_bias"] = false;
  if (family.name == "qwen3") config["use_sliding_window"] = false;
  config["bos_token_id"] = token_or_null(bos);
  config["eos_token_id"] = token_or_null(eos);
  config["torch_dtype"] = std::string(torch_dtype_name(dtype));
  config["use_cache"] = true;
  return config;
}

Json hf_generation_config(int64_t bos, int64_t eos) {
  return {{"_from_model_config", true},
          {"bos_token_id", token_or_null(bos)},
          {"eos_token_id", token_or_null(eos)}};
}

ModelConfig model_from_hf_config(const Json& config, const std::string& source) {
  const Reader reader(config, source);
  const std::string model_type = reader.text("model_type", "");
  ModelConfig model;
  model.family.clear();
  std::vector<std::string> known;
  for (const auto& family : model_families()) {
    known.emplace_back(family.hf_model_type);
    if (family.hf_model_type == model_type) model.family = family.name;
  }
  if (model.family.empty()) reader.refuse("model_type", format("supported are {}", join(known, ", ")));

  model.dim = reader.integer("hidden_size");
  model.n_layers = reader.integer("num_hidden_layers");
  model.n_heads = reader.integer("num_attention_heads");
  model.n_kv_heads = reader.integer("num_key_value_heads", model.n_heads);
  // Llama's head size follows from its width; Qwen3's default is 128 whatever the width.
  model.head_dim = reader.integer("head_dim", model.family == "qwen3" ? 128 : model.dim / model.n_heads);
  model.ffn_dim = reader.integer("intermediate_size");
  model.vocab_size = reader.integer("vocab_size");
  model.max_position = reader.integer("max_position_embeddings", model.max_position);
  model.norm_eps = reader.number("rms_norm_eps", 1e-6);
  // transformers 5 keeps theta and scaling together in "rope_parameters".
  const char* scaling_key = reader.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  if (reader.has(scaling_key)) {
    model.rope_scaling = read_rope_scaling(reader.at(scaling_key), source);
    model.rope_theta = Reader(reader.at(scaling_key), source).number("rope_theta", 10000.0);
  }
  model.rope_theta = reader.number("rope_theta", model.rope_theta);
  model.tie_embeddings = reader.boolean("tie_word_embeddings", false);

  if (reader.text("hidden_act", "silu") != "silu") reader.refuse("hidden_act", "only \"silu\" is supported");
  for (const char* key : {"attention_bias", "mlp_bias", "use_sliding_window"}) {
    if (reader.boolean(key, false)) reader.refuse(key, "not supported; expected false");
  }
  if (model.n_heads % model.n_kv_heads != 0) {
    reader.refuse("num_key_value_heads", format("does not divide num_attention_heads = {}", model.n_heads));
  }
  if (model.head_dim % 2 != 0) reader.refuse("head_dim", "rotary embedding needs an even head size");
  return model;
}

}  // namespace stepforge
