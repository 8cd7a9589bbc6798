// SPDX-License-Identifier: Apache-2.0
// Loads and checks a configuration from a preset, a file and the command line.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "stepforge/config/config.h"

namespace stepforge {

/// A checked configuration, and the origin of each value.
struct LoadedConfig {
  Config config;
  /// "training.steps" -> "run.toml:12:9", "command line" or "preset debug"; defaults are not listed.
  std::map<std::string, std::string, std::less<>> origins;
};

/// What is checked in addition to values and their combinations: nothing (plan, config show), that the data
/// sources exist (data show), or all that training needs (see validate_for_training).
enum class ConfigUse { inspect, data, train };

/// Loads defaults, preset, `file` (if any) and `overrides` in this order; later ones win.
///
/// - The preset is named by the key `preset` of the file or of an override.
/// - Overrides have the form "training.steps=10", "--training.steps=10", or "--training.steps" "10". Their
///   values are TOML, where strings need no quotes and lists no brackets.
/// - A nested table is merged key by key; a list is replaced as a whole.
/// - If `file` is the config.toml of a run folder that was moved, `run_dir` becomes its folder: if that holds
///   checkpoints and no override sets run_dir.
///
/// Throws UsageError listing every error, each on its own line:
/// "run.toml:12:9: training.steps = "ten": expected …".
LoadedConfig load_config(const std::optional<std::filesystem::path>& file,
                         std::span<const std::string> overrides = {}, ConfigUse use = ConfigUse::inspect);

/// The same for the text of a file; `name` is the file's name in messages.
LoadedConfig parse_config(std::string_view text, const std::string& name,
                          std::span<const std::string> overrides = {}, ConfigUse use = ConfigUse::inspect);

/// Throws UsageError listing what training needs and the configuration lacks: data sources, steps or epochs,
/// validation data if validation is enabled, files that exist.
void validate_for_training(const LoadedConfig& loaded);

/// The origin of a field such as "training.steps" or "data.sources.0.path": "run.toml:12:9", "command line",
/// "preset debug" or "default".
std::string where(const LoadedConfig& loaded, std::string_view field);

}  // namespace stepforge
