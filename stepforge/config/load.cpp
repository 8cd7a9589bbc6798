// SPDX-License-Identifier: Apache-2.0
#include "stepforge/config/load.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/config/apply.h"
#include "stepforge/config/foreign_reader.h"
#include "stepforge/config/override_value.h"
#include "stepforge/config/presets.h"
#include "stepforge/config/problems.h"
#include "stepforge/config/rules.h"

namespace stepforge {

namespace {

constexpr int64_t max_file_bytes = int64_t{4} << 20;
constexpr int max_preset_depth = 4;

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const EmbeddedPreset& preset : embedded_presets()) names.emplace_back(preset.name);
  return names;
}

/// The layers of one configuration, parsed but not yet applied.
class Loading {
 public:
  void add_text(std::string_view text, const std::string& name);
  void add_overrides(std::span<const std::string> words) { overrides_ = read_overrides(words, problems_); }
  void add_run_folder(const std::filesystem::path& file);
  LoadedConfig finish(ConfigUse use);

 private:
  void follow_moved_run();
  void apply_chosen_preset();
  void apply_preset(const std::string& name, const ConfigLayer& chosen_in, TextPosition position, int depth);

  Problems problems_;
  ConfigLayer file_layer_;
  const ConfigLayer command_line_{ConfigLayer::Kind::command_line, "command line"};
  ConfigValue file_;
  std::vector<Override> overrides_;
  std::filesystem::path run_folder_;  ///< the folder of a file config.toml
  LoadedConfig loaded_;
};

void Loading::add_text(std::string_view text, const std::string& name) {
  file_layer_ = {ConfigLayer::Kind::file, name};
  try {
    file_ = parse_toml(text);
  } catch (const TomlError& error) {
    const std::string reason = looks_like_yaml(text)
                                   ? format(
                                         "this looks like YAML, and configurations are TOML; `stepforge "
                                         "config convert {}` translates it",
                                         name)
                                   : format("not valid TOML: {}", error.what());
    problems_.add(file_layer_, error.position(), reason);
    problems_.mark_bad("");
  }
}

void Loading::apply_chosen_preset() {
  const Override* typed = nullptr;
  for (const Override& word : overrides_) {
    if (word.name == "preset") typed = &word;
  }
  std::optional<ConfigValue> choice;
  if (typed != nullptr) {
    std::string ignored;  // a faulty word is reported when it is applied
    choice = override_value(*config_schema().find("preset"), typed->text, ignored);
  } else if (const ConfigValue* in_file = file_.find("preset")) {
    choice = *in_file;
  }
  if (!choice || choice->kind != ConfigValue::Kind::text || choice->text.empty()) return;
  apply_preset(choice->text, typed != nullptr ? command_line_ : file_layer_, choice->position, 0);
}

void Loading::apply_preset(const std::string& name, const ConfigLayer& chosen_in, TextPosition position,
                           int depth) {
  const EmbeddedPreset* preset = find_preset(name);
  if (preset == nullptr || depth == max_preset_depth) {
    const std::string near = did_you_mean(name, preset_names());
    problems_.add(
        chosen_in, position,
        format("preset = \"{}\": no such preset; {}known: {}", name,
               near.empty() ? "" : format("did you mean \"{}\"? ", near), join(preset_names(), ", ")));
    problems_.mark_bad("");
    return;
  }
  const ConfigLayer layer{ConfigLayer::Kind::preset, format("preset {}", name)};
  const ConfigValue values = parse_toml(preset->text);
  if (const ConfigValue* base = values.find("preset"))
    apply_preset(base->text, layer, base->position, depth + 1);
  LayerApplier(loaded_, problems_, layer).apply(values);
}

void Loading::add_run_folder(const std::filesystem::path& file) {
  if (file.filename() == "config.toml") run_folder_ = std::filesystem::absolute(file).parent_path();
}

/// The config.toml of a run says where the run was when it was written; now it is where the file is.
void Loading::follow_moved_run() {
  std::error_code fault;
  Config& config = loaded_.config;
  if (run_folder_.empty() || where(loaded_, "run_dir") == command_line_.name) return;
  if (!std::filesystem::is_directory(run_folder_ / config.checkpoint.folder, fault)) return;
  if (!std::filesystem::equivalent(run_folder_, config.run_dir, fault)) config.run_dir = run_folder_.string();
}

LoadedConfig Loading::finish(ConfigUse use) {
  apply_chosen_preset();
  LayerApplier(loaded_, problems_, file_layer_).apply(file_);
  LayerApplier command_line(loaded_, problems_, command_line_);
  for (const Override& word : overrides_) command_line.apply(word);
  follow_moved_run();
  check_combinations(loaded_, problems_);
  if (use != ConfigUse::inspect) check_data(loaded_, problems_);
  if (use == ConfigUse::train) check_for_training(loaded_, problems_);
  problems_.throw_if_any();
  return std::move(loaded_);
}

}  // namespace

LoadedConfig parse_config(std::string_view text, const std::string& name,
                          std::span<const std::string> overrides, ConfigUse use) {
  Loading loading;
  loading.add_text(text, name);
  loading.add_overrides(overrides);
  return loading.finish(use);
}

LoadedConfig load_config(const std::optional<std::filesystem::path>& file,
                         std::span<const std::string> overrides, ConfigUse use) {
  if (!file) return parse_config("", "", overrides, use);
  std::string text;
  try {
    text = read_file(*file, max_file_bytes);
  } catch (const Error& error) {
    const bool is_preset = find_preset(file->string()) != nullptr;
    throw UsageError(
        format("configuration file {}: {}{}", file->string(), error.what(),
               is_preset ? format("; a preset has this name: write preset={}", file->string()) : ""));
  }
  Loading loading;
  loading.add_text(text, file->string());
  loading.add_overrides(overrides);
  loading.add_run_folder(*file);
  return loading.finish(use);
}

void validate_for_training(const LoadedConfig& loaded) {
  Problems problems;
  check_data(loaded, problems);
  check_for_training(loaded, problems);
  problems.throw_if_any();
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
  // A nested table merged from several origins has them all.
  const std::string inside = std::string(field) + ".";
  std::vector<std::string> parts;
  for (auto part = loaded.origins.lower_bound(inside);
       part != loaded.origins.end() && part->first.starts_with(inside); ++part) {
    if (std::find(parts.begin(), parts.end(), part->second) == parts.end()) parts.push_back(part->second);
  }
  return parts.empty() ? "default" : join(parts, ", ");
}

}  // namespace stepforge
