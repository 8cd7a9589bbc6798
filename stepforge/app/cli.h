// SPDX-License-Identifier: Apache-2.0
// Help and error texts of the command line; CLI11 does the parsing.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "stepforge/app/commands.h"
#include "stepforge/config/schema.h"

namespace stepforge {

/// Adds the configuration's arguments to usage lines, and defaults to descriptions.
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_usage(const CLI::App* app, std::string name) const override;
  std::string make_option_opts(const CLI::Option* option) const override;
  std::string make_option_desc(const CLI::Option* option) const override;
};

/// Accepts numbers of at least `min`, and at most `max` if it is given.
CLI::Validator number(double min, std::optional<double> max = std::nullopt);

/// An option that takes one of `accepted`, names of values of the enum `Choice`. An std::optional has no default.
template <typename Choice>
void add_choice(CLI::App& command, const std::string& name, std::optional<Choice>& value,
                std::vector<std::string> accepted, const std::string& text) {
  std::string names = accepted.front();
  for (size_t i = 1; i < accepted.size(); ++i) names += "|" + accepted[i];
  command
      .add_option_function<std::string>(
          name, [&value](const std::string& typed) { value = choice_from_name<Choice>(typed); }, text)
      ->type_name(names)
      ->check([accepted = std::move(accepted), names](const std::string& typed) {
        const bool known = std::find(accepted.begin(), accepted.end(), typed) != accepted.end();
        return known ? "" : "\"" + typed + "\" is not one of " + names;
      });
}
template <typename Choice>
void add_choice(CLI::App& command, const std::string& name, Choice& value, std::vector<std::string> accepted,
                const std::string& text) {
  std::string names = accepted.front();
  for (size_t i = 1; i < accepted.size(); ++i) names += "|" + accepted[i];
  command
      .add_option_function<std::string>(
          name, [&value](const std::string& typed) { value = choice_from_name<Choice>(typed); }, text)
      ->type_name(names)
      ->default_str(std::string(choice_name(value)))
      ->check([accepted = std::move(accepted), names](const std::string& typed) {
        const bool known = std::find(accepted.begin(), accepted.end(), typed) != accepted.end();
        return known ? "" : "\"" + typed + "\" is not one of " + names;
      });
}

/// Adds the arguments of a configuration: --preset, a TOML file, and fields.
void accept_config(CLI::App& command, std::string& preset);

/// Loads the plug-ins that `--plugin FILE` and `--plugin=FILE` name, and removes these arguments. Those after `launch` are
/// left, since they may belong to another program.
void take_plugins(std::vector<std::string>& arguments, Registry& registry);

/// The arguments that accept_config allows. The file is the argument that is neither an override nor the
/// value of the preceding option. Throws UsageError if there are two files, or for an unknown option.
ConfigArgs config_args(const CLI::App& command, const std::string& preset,
                       const std::shared_ptr<Registry>& registry);

/// The sub-commands of `command` with their descriptions, one per line.
std::string command_list(const CLI::App& command);

/// Throws UsageError if an argument before the first option is not a command, or if one is missing.
void check_commands(const CLI::App& app, const std::vector<std::string>& arguments);

/// The error message for a failed parse.
std::string explain(const CLI::App& app, const CLI::ParseError& error);

}  // namespace stepforge
