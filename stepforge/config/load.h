// SPDX-License-Identifier: Apache-2.0
// Loads and checks a configuration from a preset, a file and the command line.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/config/config.h"

namespace stepforge {

/// A checked configuration, and the origin of each value.
struct LoadedConfig {
  Config config;
  /// "training.steps" -> "run.toml:12:9", "command line" or "preset debug"; defaults are not listed.
  std::map<std::string, std::string, std::less<>> origins;
  /// The fields that the user has set: in a file that is not a run's own, or on the command line.
  std::set<std::string, std::less<>> chosen = {};
  /// What `model.from` named, or "". `config` contains all that it set, and has no `model.from`.
  std::string model_from = {};
  /// With ConfigUse::plan: what training would refuse in addition, because of fields that the user has not set.
  std::vector<std::string> missing = {};
};

/// What is checked in addition to values and their combinations: nothing (inspect), that the data sources exist (data), or
/// all that training needs (train, see validate_for_training). `plan` checks the same as `train`, but fields that the user
/// has not set, such as the data of a preset, may be missing (LoadedConfig::missing).
enum class ConfigUse { inspect, plan, data, train };

/// The settings, written as overrides, of a run that starts from the model that `model.from` names
/// (plan/known_model.h has the function). `plugins` have the families that are not built in. Throws Error if there is no
/// such model.
using ModelSettings = std::function<std::vector<std::string>(const std::string& from,
                                                             const std::shared_ptr<const Registry>& plugins)>;

/// Loads defaults, preset, the settings of `model.from`, `file` (if any) and `overrides` in this order; later
/// ones win.
///
/// - The preset is named by the key `preset` of the file or of an override.
/// - Keys of [model] must not differ from the model of `model.from`, unless checkpoint.allow_changed names
///   "model"; dropout, freeze and max_position may, and vocab_size may be larger. Without `settings_of_model`,
///   `model.from` is refused.
/// - Overrides have the form "training.steps=10", "--training.steps=10", or "--training.steps" "10". Their
///   values are TOML, where strings need no quotes and lists no brackets.
/// - A nested table is merged key by key; a list is replaced as a whole.
/// - The plug-ins of `experimental.custom_import` are loaded into `registry`, which may have others already; the key
///   then lists all. Without a registry the key is refused. Only ConfigUse::train loads plug-ins that a file
///   names; for other uses an override must name those that `registry` does not have yet. Keys of their sections follow the
///   same rules.
/// - If `file` is the config.toml of a run folder that was moved, `run_dir` becomes its folder, provided that the folder
///   holds checkpoints and no override sets run_dir.
///
/// Throws UsageError listing every error, each on its own line:
/// "run.toml:12:9: training.steps = "ten": expected …".
LoadedConfig load_config(const std::optional<std::filesystem::path>& file,
                         std::span<const std::string> overrides = {}, ConfigUse use = ConfigUse::inspect,
                         const ModelSettings& settings_of_model = {},
                         const std::shared_ptr<Registry>& registry = nullptr);

/// The same for the text of a file; `name` is the file's name in messages.
LoadedConfig parse_config(std::string_view text, const std::string& name,
                          std::span<const std::string> overrides = {}, ConfigUse use = ConfigUse::inspect,
                          const ModelSettings& settings_of_model = {},
                          const std::shared_ptr<Registry>& registry = nullptr);

/// The configuration that a run has written, without loading plug-ins: sections and names that are not in `registry` are
/// ignored if the run had plug-ins. Throws UsageError as load_config does.
Config parse_stored_config(std::string_view text, const std::string& name,
                           std::shared_ptr<const Registry> registry = nullptr);

/// Throws UsageError listing what training needs and the configuration lacks: data sources, steps or epochs,
/// validation data if validation is enabled, files that exist.
void validate_for_training(const LoadedConfig& loaded);

/// "model.dim = 512" for each field that has the value of the model that `model.from` named.
std::vector<std::string> taken_from_model(const LoadedConfig& loaded);

/// The origin of a field such as "training.steps" or "data.sources.0.path": "run.toml:12:9", "command line",
/// "preset debug" or "default".
std::string where(const LoadedConfig& loaded, std::string_view field);

}  // namespace stepforge
