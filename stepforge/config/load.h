// SPDX-License-Identifier: Apache-2.0
// From a preset, a file and the command line to a checked Config.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "stepforge/config/config.h"

namespace stepforge {

/// A configuration that passed every check, and where each of its values came from.
struct LoadedConfig {
  Config config;
  /// "training.steps" -> "run.toml:12:9", "command line" or "preset debug"; defaults are not listed.
  std::map<std::string, std::string, std::less<>> origins;
};

/// What a configuration must have beside sound values: nothing more (plan, config show), data sources that
/// exist (data show), or all that training needs (see validate_for_training).
enum class ConfigUse { inspect, data, train };

/// Reads `file` (if any) and applies `overrides`, such as "training.steps=10", "--training.steps=10", or
/// "--training.steps" "10"; their values are TOML, where strings need no quotes and lists no brackets. Later
/// sources win: defaults, preset (named by the key `preset` in the file or an override), file, overrides in
/// their order. The config.toml of a run folder that was moved names the folder it is in now. A nested table is merged key by key, a list is replaced as a whole. Throws UsageError that
/// lists every error found, one a line: "run.toml:12:9: training.steps = "ten": expected …".
LoadedConfig load_config(const std::optional<std::filesystem::path>& file,
                         std::span<const std::string> overrides = {}, ConfigUse use = ConfigUse::inspect);

/// The same from a text; `name` stands for the file's name in messages.
LoadedConfig parse_config(std::string_view text, const std::string& name,
                          std::span<const std::string> overrides = {}, ConfigUse use = ConfigUse::inspect);

/// Throws UsageError listing all that `config` lacks for training: sources, steps or epochs, validation data
/// if validation is on, files that do not exist.
void validate_for_training(const LoadedConfig& loaded);

/// Where the value of a field, say "training.steps" or "data.sources.0.path", came from: "run.toml:12:9",
/// "command line", "preset debug" or "default".
std::string where(const LoadedConfig& loaded, std::string_view field);

}  // namespace stepforge
