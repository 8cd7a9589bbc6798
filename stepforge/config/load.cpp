// SPDX-License-Identifier: Apache-2.0
#include "stepforge/config/load.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/base/plugin_loader.h"
#include "stepforge/base/shell_word.h"
#include "stepforge/config/apply.h"
#include "stepforge/config/config_section.h"
#include "stepforge/config/data_sources.h"
#include "stepforge/config/diff.h"
#include "stepforge/config/foreign_reader.h"
#include "stepforge/config/override_value.h"
#include "stepforge/config/presets.h"
#include "stepforge/config/rules.h"
#include "stepforge/config/toml_text.h"

namespace stepforge {

namespace {

constexpr int64_t kMaxFileBytes = int64_t{4} << 20;
constexpr int kMaxPresetDepth = 4;
constexpr const char* kCustomImport = "experimental.custom_import";

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const EmbeddedFile& preset : embedded_presets()) names.emplace_back(preset.name);
  return names;
}

/// The origin of values that the model of model.from sets.
std::string model_layer_name(const std::string& from) {
  return "model.from " + from;
}

class ConfigLoader {
 public:
  /// `name` stands for the file's name in messages.
  ConfigLoader(std::string_view text, const std::string& name, std::span<const std::string> overrides);

  /// The folder of a file config.toml, which may be a run folder.
  void set_file_folder(const std::filesystem::path& folder) { file_folder_ = folder; }
  LoadedConfig load(ConfigUse use, const ModelSettings& settings_of_model,
                    const std::shared_ptr<Registry>& registry);
  Config load_stored(std::shared_ptr<const Registry> registry);

 private:
  bool is_file_of_run() const;
  void follow_moved_run();
  void find_chosen();
  /// The value of a key that decides about other layers: from the command line or the file; null if neither
  /// gives a usable one.
  struct Choice {
    std::string text;
    std::string place;
  };
  std::optional<Choice> chosen(const std::string& name) const;
  struct ChosenValue {
    ConfigValue value;
    const ConfigLayer& layer;
  };
  std::optional<ChosenValue> chosen_value(const std::string& name) const;
  void import_plugins(ConfigUse use, Registry* registry);
  void apply_chosen_preset();
  void apply_model(const ModelSettings& settings_of_model);
  void apply_adapter(const ModelSettings& settings_of_model);
  void choose_head();
  void check_against_model();
  void apply_preset(const std::string& name, const std::string& chosen_at, int depth);

  ErrorList errors_ = ErrorList::with_places("the configuration");
  RefusedFields refused_;
  ConfigLayer file_layer_;
  const ConfigLayer command_line_{"command line"};
  ConfigValue file_;
  std::vector<Override> overrides_;
  std::filesystem::path file_folder_;
  LoadedConfig loaded_;
  std::optional<Config> model_;  ///< after the layer of model.from, if there is one
};

ConfigLoader::ConfigLoader(std::string_view text, const std::string& name,
                           std::span<const std::string> overrides)
    : file_layer_{name, /*is_file=*/true}, overrides_(read_overrides(overrides)) {
  try {
    file_ = parse_toml(text);
  } catch (const TomlError& error) {
    std::string reason = format("not valid TOML: {}", error.what());
    if (looks_like_yaml(text)) {
      reason = format(
          "this looks like YAML, but configurations are TOML; `stepforge config convert {}` translates it",
          name);
    }
    errors_.add(format("{}: {}", file_layer_.place(error.position()), reason));
    refused_.add("");
  }
}

std::optional<ConfigLoader::ChosenValue> ConfigLoader::chosen_value(const std::string& name) const {
  const auto typed = std::find_if(overrides_.rbegin(), overrides_.rend(),
                                  [&](const Override& setting) { return setting.name == name; });
  const bool is_typed = typed != overrides_.rend();
  ConfigValue value;
  if (is_typed) {
    try {
      Config any;
      value = override_value(*find_field(config_schema(), &any, name).field, typed->text);
    } catch (const TomlError&) {
      return std::nullopt;  // reported when the override is applied
    }
  } else {
    const size_t dot = name.find('.');
    const ConfigValue* in_file = file_.find(name.substr(0, dot));
    if (in_file != nullptr && dot != std::string::npos) in_file = in_file->find(name.substr(dot + 1));
    if (in_file != nullptr) value = *in_file;
  }
  return ChosenValue{value, is_typed ? command_line_ : file_layer_};
}

std::optional<ConfigLoader::Choice> ConfigLoader::chosen(const std::string& name) const {
  const auto found = chosen_value(name);
  if (!found || found->value.kind != ConfigValue::Kind::text || found->value.text.empty())
    return std::nullopt;
  return Choice{found->value.text, found->layer.place(found->value.position)};
}

/// Runs before the other keys are read, since they may belong to the plug-ins. Inspecting a file must not run code that it
/// names.
void ConfigLoader::import_plugins(ConfigUse use, Registry* registry) {
  const auto found = chosen_value(kCustomImport);
  if (!found || found->value.kind != ConfigValue::Kind::list) return;
  for (const ConfigValue& file : found->value.list) {
    if (file.kind != ConfigValue::Kind::text || file.text.empty()) continue;  // refused when it is applied
    const std::string place = found->layer.place(file.position);
    if (registry == nullptr)
      throw UsageError(format("{}: {}: plug-ins cannot be loaded here", place, kCustomImport));
    if (use != ConfigUse::train && found->layer.is_file && !is_loaded(file.text, *registry)) {
      throw UsageError(format(
          "{}: {} names the plug-in {}, and only `train` runs code that a file names; if you trust it, "
          "add --plugin {}",
          place, kCustomImport, file.text, shell_word(file.text)));
    }
    load_plugin(file.text, format("{}: {}", place, kCustomImport), *registry);
  }
}

/// Loads the configuration that a run wrote; its plug-ins may be missing.
Config ConfigLoader::load_stored(std::shared_ptr<const Registry> registry) {
  if (registry != nullptr) use_plugins(loaded_.config, make_config_shape(std::move(registry)));
  const auto plugins = chosen_value(kCustomImport);
  file_layer_.lacks_plugins = plugins && !plugins->value.list.empty();
  apply_chosen_preset();
  LayerApplier(loaded_, errors_, refused_, file_layer_).apply(file_);
  check_combinations(loaded_, refused_, errors_);
  errors_.throw_if_any<UsageError>();
  return std::move(loaded_.config);
}

void ConfigLoader::apply_chosen_preset() {
  if (const auto preset = chosen("preset")) apply_preset(preset->text, preset->place, 0);
}

void ConfigLoader::apply_model(const ModelSettings& settings_of_model) {
  const auto from = chosen("model.from");
  if (!from) return;
  try {
    if (!settings_of_model) throw UsageError("models on disk cannot be read here");
    loaded_.model_from = from->text;
    LayerApplier layer(loaded_, errors_, refused_, {model_layer_name(from->text)});
    for (const Override& setting :
         read_overrides(settings_of_model(from->text, loaded_.config.model.plugins)))
      layer.apply(setting);
    model_ = loaded_.config;
  } catch (const Error& error) {
    errors_.add(format("{}: model.from = \"{}\": {}", from->place, from->text, error.what()));
    refused_.add("");
  }
}

/// Rank, targets and the like are those of the adapter that the run starts from.
void ConfigLoader::apply_adapter(const ModelSettings& settings_of_model) {
  const auto from = chosen("adapter.from");
  if (!from || from->text.empty()) return;
  try {
    if (!settings_of_model) throw UsageError("adapters on disk cannot be read here");
    LayerApplier layer(loaded_, errors_, refused_, {"adapter.from " + from->text});
    for (const Override& setting :
         read_overrides(settings_of_model(from->text + "/adapter_config.json", loaded_.config.model.plugins)))
      layer.apply(setting);
  } catch (const Error& error) {
    errors_.add(format("{}: adapter.from = \"{}\": {}", from->place, from->text, error.what()));
    refused_.add("");
  }
}

/// A reward model has a score, also if it starts from a model with a vocabulary.
void ConfigLoader::choose_head() {
  Config& config = loaded_.config;
  if (!config.preference.scores() || config.model.scores() || loaded_.chosen.contains("model.head")) return;
  config.model.head = HeadKind::score;
  loaded_.origins["model.head"] = where(loaded_, "preference.loss");
}

/// Refuses keys of [model] that contradict the model of model.from.
void ConfigLoader::check_against_model() {
  const auto& allowed = loaded_.config.checkpoint.allow_changed;
  if (!model_ || std::find(allowed.begin(), allowed.end(), Guard::model) != allowed.end()) return;
  const Config& config = loaded_.config;
  for (const FieldDifference& difference : diff(*model_, config)) {
    const std::string& name = difference.name;
    if (!name.starts_with("model.") || name == "model.from" || name == "model.dropout" ||
        name == "model.freeze" || name == "model.frozen_dtype" || name == "model.double_quantization" ||
        name == "model.max_position" || name == "model.mtp_loss_weight" || name == "model.score_init_std" ||
        (name == "model.head" && config.preference.scores() && config.model.scores()) ||
        (name == "model.n_mtp_layers" && config.model.n_mtp_layers < model_->model.n_mtp_layers) ||
        (name == "model.vocab_size" && config.model.vocab_size > model_->model.vocab_size))
      continue;
    errors_.add(
        format("{}: {} = {}: the model in {} has {}; remove the key, or accept the difference with "
               "checkpoint.allow_changed = [\"model\"]{}",
               where(loaded_, name), name, difference.after, loaded_.model_from, difference.before,
               name == "model.vocab_size" ? "; a vocabulary may only grow" : ""));
  }
}

void ConfigLoader::apply_preset(const std::string& name, const std::string& chosen_at, int depth) {
  const EmbeddedFile* preset = find_preset(name);
  if (preset == nullptr || depth == kMaxPresetDepth) {
    const std::string near = did_you_mean(name, preset_names());
    errors_.add(format("{}: preset = \"{}\": unknown preset; {}known presets: {}", chosen_at, name,
                       near.empty() ? "" : format("did you mean \"{}\"? ", near),
                       join(preset_names(), ", ")));
    refused_.add("");
    return;
  }
  const ConfigLayer layer{format("preset {}", name)};
  const ConfigValue values = parse_toml(preset->text);
  if (const ConfigValue* base = values.find("preset")) apply_preset(base->text, layer.name, depth + 1);
  LayerApplier(loaded_, errors_, refused_, layer).apply(values);
}

/// Whether the file is the config.toml of a run folder, which states all fields, also those that the user did not set.
bool ConfigLoader::is_file_of_run() const {
  std::error_code error;
  const Config& config = loaded_.config;
  if (file_folder_.empty()) return false;
  return std::filesystem::is_directory(file_folder_ / config.checkpoint.folder, error) ||
         std::filesystem::equivalent(file_folder_, config.run_dir, error);
}

/// A run's config.toml has the run_dir with which the run was started. If the folder was moved since, the
/// folder of the file replaces it.
void ConfigLoader::follow_moved_run() {
  std::error_code error;
  Config& config = loaded_.config;
  if (!is_file_of_run() || where(loaded_, "run_dir") == command_line_.name) return;
  if (!std::filesystem::equivalent(file_folder_, config.run_dir, error))
    config.run_dir = file_folder_.string();
}

void ConfigLoader::find_chosen() {
  const bool counts = !is_file_of_run();
  for (const auto& [name, place] : loaded_.origins) {
    if (place == command_line_.name || (counts && place.starts_with(file_layer_.name + ":")))
      loaded_.chosen.insert(name);
  }
}

LoadedConfig ConfigLoader::load(ConfigUse use, const ModelSettings& settings_of_model,
                                const std::shared_ptr<Registry>& registry) {
  import_plugins(use, registry.get());
  if (registry != nullptr) use_plugins(loaded_.config, make_config_shape(registry));
  apply_chosen_preset();
  apply_model(settings_of_model);
  apply_adapter(settings_of_model);
  LayerApplier(loaded_, errors_, refused_, file_layer_).apply(file_);
  LayerApplier command_line(loaded_, errors_, refused_, command_line_);
  for (const Override& setting : overrides_) command_line.apply(setting);
  follow_moved_run();
  find_chosen();
  choose_head();
  // A run's config.toml states it, and keeps it in later versions.
  if (!loaded_.origins.contains("data.packing"))
    loaded_.config.data.packing = default_packing(loaded_.config.data);
  check_against_model();
  check_combinations(loaded_, refused_, errors_);
  std::vector<std::string>* missing = use == ConfigUse::plan ? &loaded_.missing : nullptr;
  if (use != ConfigUse::inspect) check_data(loaded_, refused_, errors_, missing);
  if (use == ConfigUse::train || use == ConfigUse::plan)
    check_for_training(loaded_, refused_, errors_, missing);
  errors_.throw_if_any<UsageError>();
  if (registry != nullptr) list_plugins(loaded_.config);
  loaded_.config.model.from.clear();
  return std::move(loaded_);
}

}  // namespace

LoadedConfig parse_config(std::string_view text, const std::string& name,
                          std::span<const std::string> overrides, ConfigUse use,
                          const ModelSettings& settings_of_model, const std::shared_ptr<Registry>& registry) {
  return ConfigLoader(text, name, overrides).load(use, settings_of_model, registry);
}

Config parse_stored_config(std::string_view text, const std::string& name,
                           std::shared_ptr<const Registry> registry) {
  return ConfigLoader(text, name, {}).load_stored(std::move(registry));
}

LoadedConfig load_config(const std::optional<std::filesystem::path>& file,
                         std::span<const std::string> overrides, ConfigUse use,
                         const ModelSettings& settings_of_model, const std::shared_ptr<Registry>& registry) {
  if (!file) return parse_config("", "", overrides, use, settings_of_model, registry);
  std::string text;
  try {
    text = read_file(*file, kMaxFileBytes);
  } catch (const Error& error) {
    const bool is_preset = find_preset(file->string()) != nullptr;
    throw UsageError(
        format("configuration file {}: {}{}", file->string(), error.what(),
               is_preset ? format("; a preset has this name: write preset={}", file->string()) : ""));
  }
  ConfigLoader loader(text, file->string(), overrides);
  if (file->filename() == "config.toml")
    loader.set_file_folder(std::filesystem::absolute(*file).parent_path());
  return loader.load(use, settings_of_model, registry);
}

void validate_for_training(const LoadedConfig& loaded) {
  ErrorList errors = ErrorList::with_places("the configuration");
  check_data(loaded, {}, errors);
  check_for_training(loaded, {}, errors);
  errors.throw_if_any<UsageError>();
}

std::vector<std::string> taken_from_model(const LoadedConfig& loaded) {
  Config config = loaded.config;
  std::vector<std::string> settings;
  for (const auto& [name, layer] : loaded.origins) {
    if (layer != model_layer_name(loaded.model_from)) continue;
    const FieldRef ref = find_field(config_schema(), &config, name);
    settings.push_back(format("{} = {}", name, toml_value(*ref.field, slot_of(ref))));
  }
  return settings;
}

std::string where(const LoadedConfig& loaded, std::string_view field) {
  std::string_view name = field;
  while (true) {
    const auto found = loaded.origins.find(name);
    if (found != loaded.origins.end()) return found->second;
    const size_t dot = name.rfind('.');
    if (dot == std::string_view::npos) break;
    name = name.substr(0, dot);
  }
  // A nested table may be merged from several origins.
  const std::string inside = std::string(field) + ".";
  std::vector<std::string> parts;
  for (auto part = loaded.origins.lower_bound(inside);
       part != loaded.origins.end() && part->first.starts_with(inside); ++part) {
    if (std::find(parts.begin(), parts.end(), part->second) == parts.end()) parts.push_back(part->second);
  }
  return parts.empty() ? "default" : join(parts, ", ");
}

}  // namespace stepforge
