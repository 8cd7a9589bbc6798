// SPDX-License-Identifier: Apache-2.0
#include "stepforge/config/convert.h"

#include <algorithm>

#include "stepforge/base/format.h"
#include "stepforge/config/foreign_conversion.h"
#include "stepforge/config/foreign_program.h"
#include "stepforge/config/foreign_reader.h"
#include "stepforge/config/schema.h"

namespace stepforge {

namespace {

ConfigValue parse_foreign(std::string_view text, const std::string& name) {
  if (name.ends_with(".json")) return parse_config_json(text, name);
  if (name.ends_with(".yaml") || name.ends_with(".yml")) return parse_config_yaml(text, name);
  if (name.ends_with(".py")) return parse_python_assignments(text, name);
  if (name.ends_with(".sh")) return parse_shell_arguments(text, name);
  try {
    return parse_toml(text);
  } catch (const TomlError& error) {
    throw FormatError(format("{}:{}:{}: not valid TOML: {}", name, error.position().line,
                             error.position().column, error.what()));
  }
}

/// The key as the tables of `trainer` write it: "--num-layers" of any section is num_layers.
std::string key_of(const ForeignTrainer& trainer, const std::string& name) {
  if (!trainer.ignores_sections || name.starts_with("ENV_VARS.")) return name;
  std::string key = name.substr(name.rfind('.') + 1);
  key.erase(0, key.find_first_not_of('-'));
  std::ranges::replace(key, '-', '_');
  return key;
}

size_t keys_known(const ForeignTrainer& trainer, const std::vector<ForeignSetting>& settings) {
  Config scratch;
  return static_cast<size_t>(std::ranges::count_if(settings, [&](const ForeignSetting& setting) {
    if (trainer.find(key_of(trainer, setting.name)) != nullptr) return true;
    return trainer.has_our_names && find_field(config_schema(), &scratch, setting.name).field != nullptr;
  }));
}

const ForeignTrainer& trainer_of(const std::vector<ForeignSetting>& settings, const std::string& name,
                                 const std::string& asked) {
  if (!asked.empty()) {
    if (const ForeignTrainer* trainer = find_foreign_trainer(asked)) return *trainer;
    throw UsageError(format("\"{}\" is not a trainer that is known; --from is one of {}", asked,
                            join(foreign_trainer_names(), ", ")));
  }
  const auto has = [&](std::string_view key) {
    return std::ranges::find(settings, key, &ForeignSetting::name) != settings.end();
  };
  if (has("compute_environment") && has("distributed_type")) {
    throw UsageError(
        format("{} is a configuration of accelerate, which starts ranks; "
               "convert that of the training, with --ranks N, and use `stepforge launch --nproc N`",
               name));
  }
  const ForeignTrainer* best = nullptr;
  size_t most = 0;
  for (const ForeignTrainer* trainer : foreign_trainers()) {
    const size_t known = keys_known(*trainer, settings);
    if (known <= most) continue;
    most = known;
    best = trainer;
  }
  if (best != nullptr) return *best;
  throw UsageError(format("{}: no trainer that is known has these keys; --from names one of {}", name,
                          join(foreign_trainer_names(), ", ")));
}

}  // namespace

std::vector<std::string> foreign_trainer_names() {
  std::vector<std::string> names;
  for (const ForeignTrainer* trainer : foreign_trainers()) names.emplace_back(trainer->name);
  return names;
}

ConvertedConfig convert_config(std::string_view text, const std::string& name,
                               const ConvertOptions& options) {
  std::vector<ForeignSetting> settings = foreign_settings(parse_foreign(text, name));
  const ForeignTrainer& trainer = trainer_of(settings, name, options.from);
  for (ForeignSetting& setting : settings) setting.key = key_of(trainer, setting.name);
  ConvertedConfig converted = ForeignConversion(trainer, std::move(settings), options.ranks).run();
  converted.toml = format("# From {} ({}).\n{}", name, converted.trainer, converted.toml);
  try {
    parse_converted(converted.toml);
  } catch (const UsageError& refusal) {
    converted.problem = refusal.what();
  }
  return converted;
}

LoadedConfig parse_converted(const std::string& toml) {
  // Models and adapters are not read here. An adapter decides its own settings.
  const ModelSettings nothing = [](const std::string&, const std::shared_ptr<const Registry>&) {
    return std::vector<std::string>{};
  };
  const ConfigValue parsed = parse_toml(toml);
  const ConfigValue* const model = parsed.find("model");
  const ConfigValue* const from = model == nullptr ? nullptr : model->find("from");
  if (from == nullptr) return parse_config(toml, "the result", {}, ConfigUse::inspect, nothing);
  // The settings of the model are not known: its context is assumed to be long enough, and its weights to be there.
  std::string without = toml;
  without.insert(without.find("\nfrom = ", without.find("\n[model]\n")) + 1, "# ");
  LoadedConfig loaded = parse_config(
      without, "the result",
      std::vector<std::string>{"model.max_position=1073741824", "checkpoint.initial_load_path=model"},
      ConfigUse::inspect, nothing);
  loaded.config.checkpoint.initial_load_path.clear();
  loaded.origins.erase("checkpoint.initial_load_path");
  loaded.chosen.erase("checkpoint.initial_load_path");
  loaded.config.model.from = from->text;
  return loaded;
}

}  // namespace stepforge
