// SPDX-License-Identifier: Apache-2.0
#include "stepforge/catalog/peft_config.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <set>
#include <string_view>
#include <vector>

#include "stepforge/base/format.h"
#include "stepforge/base/json_reader.h"
#include "stepforge/catalog/adapter_biases.h"
#include "stepforge/catalog/adapter_ranks.h"
#include "stepforge/catalog/adapters.h"
#include "stepforge/catalog/module_names.h"

namespace stepforge {

namespace {

std::string last_part(const std::string& module) {
  return module.substr(module.rfind('.') + 1);
}

/// The modules of the model that have an adapter, and those that have none but could by their last name.
struct Modules {
  std::vector<std::string> adapted;
  std::set<std::string> others;
  std::vector<std::string> also_trained;
};

Modules modules_of(const ModelSpec& model) {
  Modules found;
  for (const UnitSpec& unit : model.units)
    for (const ParameterSpec& parameter : unit.parameters)
      for (const SubTensor& tensor : parameter.sub_tensors) {
        const std::string& name = tensor.hf_name;
        if (is_adapter_tensor(name)) {
          // Experts may have one A together.
          if (name.ends_with(kSuffixB) || name.ends_with(kEmbeddingSuffixB))
            found.adapted.emplace_back(adapted_module(name));
        } else {
          found.others.emplace(module_of(name));
          // Modules that are trained whole have another tensor; the others are those of "bias".
          if (unit.trainable && !name.ends_with(kBiasSuffix))
            found.also_trained.emplace_back(module_of(name));
        }
      }
  for (const std::string& module : found.adapted) found.others.erase(module);
  return found;
}

/// Whether the model is a classifier to PEFT, whose head is trained and saved in any case.
bool has_score(const ModelSpec& model) {
  return std::ranges::any_of(model.units, [](const UnitSpec& unit) { return unit.has(ParameterTag::score); });
}

/// The task, and the modules that PEFT adds to modules_to_save of an adapter for it.
constexpr std::string_view kClassifierTask = "SEQ_CLS";
constexpr std::string_view kClassifierHeads[] = {"classifier", "score"};

/// Last names where these name the adapted modules and no others, otherwise whole names.
std::set<std::string> target_names(const Modules& modules) {
  std::set<std::string> taken;
  for (const std::string& module : modules.others) taken.insert(last_part(module));
  std::set<std::string> names;
  for (const std::string& module : modules.adapted)
    names.insert(taken.contains(last_part(module)) ? module : last_part(module));
  return names;
}

/// The fields of a LoraConfig that say how an adapter was made, and not what it computes.
constexpr std::string_view kIgnored[] = {
    "alora_invocation_tokens",
    "arrow_config",
    "auto_mapping",
    "base_model_name_or_path",
    "corda_config",
    "eva_config",
    "fan_in_fan_out",
    "inference_mode",
    "layers_pattern",
    "loftq_config",
    "lora_ga_config",
    "megatron_config",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "revision",
    "runtime_config",
    "task_type",
};

/// Fields that must be absent, null, false or empty.
constexpr std::string_view kUnused[] = {
    "exclude_modules",         "layer_replication", "lora_bias",  "monteclora_config", "target_parameters",
    "trainable_token_indices", "use_bdlora",        "use_qalora", "velora_config",
};

/// Initializations that change the weights beside the adapter. All but the last can be undone when PEFT saves it.
constexpr std::string_view kChangingInits[] = {"pissa", "olora", "corda", "lora_ga", "loftq"};

/// Throws FormatError if the adapter belongs to other weights than those of its model.
void check_init(const JsonReader& reader) {
  constexpr const char* kField = "init_lora_weights";
  if (!reader.has(kField) || !reader[kField].json().is_string()) return;
  std::string init = reader[kField].text();
  std::ranges::transform(init, init.begin(), [](unsigned char c) { return std::tolower(c); });
  for (const std::string_view changing : kChangingInits) {
    if (!init.starts_with(changing)) continue;
    reader.refuse(kField, changing == "loftq"
                              ? "the adapter belongs to changed weights of its model; merge it with peft"
                              : "the adapter belongs to changed weights of its model; save it with "
                                "path_initial_model_for_weight_conversion in save_pretrained");
  }
}

bool is_unset(const Json& value) {
  return value.is_null() || value == false || (value.is_structured() && value.empty());
}

std::vector<std::string> texts(const JsonReader& list) {
  if (list.json().is_string()) return {list.text()};
  std::vector<std::string> found;
  for (size_t i = 0; i < list.size(); ++i) found.push_back(list.at(i).text());
  return found;
}

/// rank_pattern and alpha_pattern: numbers by regular expressions of the last parts of names.
void add_patterns(const JsonReader& reader, AdapterConfig& adapter) {
  std::map<std::string, AdapterPatternConfig> patterns;
  const auto read = [&](const char* key, auto set) {
    if (!reader.has(key)) return;
    for (const auto& [name, value] : reader[key].object().json().items())
      set(patterns[name], JsonReader(value, reader.source(), format("{}.{}", key, name)));
  };
  read("rank_pattern",
       [](AdapterPatternConfig& pattern, const JsonReader& value) { pattern.rank = value.integer(1); });
  read("alpha_pattern",
       [](AdapterPatternConfig& pattern, const JsonReader& value) { pattern.alpha = value.number(); });
  for (auto& [name, pattern] : patterns) {
    pattern.pattern = format("(?:.*\\.)?(?:{})", name.starts_with('^') ? name.substr(1) : name);
    adapter.patterns.push_back(pattern);
  }
}

/// Whether a target may be the embedding or the head.
bool names_vocabulary(const std::vector<std::string>& targets) {
  return std::ranges::any_of(targets, [](const std::string& target) {
    return target.ends_with("embed_tokens") || target.ends_with("lm_head");
  });
}

void check_fields(const JsonReader& reader) {
  constexpr std::string_view kRead[] = {"peft_type",
                                        "r",
                                        "lora_alpha",
                                        "lora_dropout",
                                        "target_modules",
                                        "rank_pattern",
                                        "alpha_pattern",
                                        "use_rslora",
                                        "use_dora",
                                        "modules_to_save",
                                        "layers_to_transform",
                                        "bias",
                                        "ensure_weight_tying",
                                        "init_lora_weights"};
  for (const auto& [key, value] : reader.object().json().items()) {
    if (std::ranges::count(kRead, key) > 0 || std::ranges::count(kIgnored, key) > 0 || is_unset(value))
      continue;
    if (std::ranges::count(kUnused, key) > 0)
      reader.refuse(key, "is not supported; merge the adapter with peft");
    reader.refuse(key, "is a field that we do not know, so that the adapter may compute something else");
  }
  // What is trained whole is tied in any case.
  if (reader.boolean_or("ensure_weight_tying", false) && names_vocabulary(texts(reader["target_modules"])))
    reader.refuse(
        "ensure_weight_tying",
        "gives embedding and head one adapter, and here each has its own; merge the adapter with peft");
  if (reader["peft_type"].text() != "LORA") reader.refuse("peft_type", "only LORA is read");
  check_init(reader);
}

AdapterBias read_bias(const JsonReader& reader) {
  const std::string bias = reader.text_or("bias", "none");
  for (const AdapterBias known : {AdapterBias::none, AdapterBias::all, AdapterBias::lora_only})
    if (choice_name(known) == bias) return known;
  reader.refuse("bias", "known are none, all and lora_only");
}

}  // namespace

Json peft_config(const AdapterConfig& adapter, const ModelSpec& model, const std::string& base) {
  const Modules modules = modules_of(model);
  AdapterRanks ranks(adapter);
  Json rank_pattern = Json::object();
  Json alpha_pattern = Json::object();
  for (const std::string& module : modules.adapted) {
    if (ranks.rank(module) != adapter.rank) rank_pattern[module] = ranks.rank(module);
    if (ranks.alpha(module) != adapter.alpha) alpha_pattern[module] = ranks.alpha(module);
  }
  Json saved;
  if (!modules.also_trained.empty())
    saved = std::set<std::string>(modules.also_trained.begin(), modules.also_trained.end());
  return {{"peft_type", "LORA"},
          {"task_type", std::string(has_score(model) ? kClassifierTask : "CAUSAL_LM")},
          {"base_model_name_or_path", base},
          {"r", adapter.rank},
          {"lora_alpha", adapter.alpha},
          {"lora_dropout", adapter.dropout},
          {"target_modules", target_names(modules)},
          {"rank_pattern", rank_pattern},
          {"alpha_pattern", alpha_pattern},
          {"use_rslora", adapter.rslora},
          {"use_dora", adapter.type == AdapterType::dora},
          {"modules_to_save", saved},
          {"layers_to_transform", nullptr},
          {"bias", std::string(choice_name(adapter.bias))},
          {"fan_in_fan_out", false},
          {"inference_mode", true},
          {"init_lora_weights", true}};
}

AdapterConfig read_peft_config(const Json& json, const std::string& source) {
  const JsonReader reader(json, source);
  check_fields(reader);
  AdapterConfig adapter;
  adapter.type = reader.boolean_or("use_dora", false) ? AdapterType::dora : AdapterType::lora;
  adapter.rank = reader["r"].integer(1);
  adapter.alpha = reader["lora_alpha"].number();
  adapter.dropout = reader.number_or("lora_dropout", 0.0);
  adapter.rslora = reader.boolean_or("use_rslora", false);
  adapter.targets = texts(reader["target_modules"]);
  adapter.bias = read_bias(reader);
  if (reader.has("modules_to_save")) {
    const bool is_classifier = reader.text_or("task_type", "") == kClassifierTask;
    // PEFT takes every module whose name ends with the text, also in the middle of a part: "norm" means q_norm too.
    for (const std::string& text : texts(reader["modules_to_save"]))
      if (!is_classifier || std::ranges::count(kClassifierHeads, text) == 0)
        adapter.also_train.push_back(".*" + text);
  }
  if (reader.has("layers_to_transform")) {
    const JsonReader layers = reader["layers_to_transform"];
    if (layers.json().is_number()) {
      adapter.layers = {layers.count()};
    } else {
      for (size_t i = 0; i < layers.size(); ++i) adapter.layers.push_back(layers.at(i).count());
    }
  }
  add_patterns(reader, adapter);
  return adapter;
}

}  // namespace stepforge
