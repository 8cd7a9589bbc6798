// SPDX-License-Identifier: Apache-2.0
#include "stepforge/app/cli.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/plugin_loader.h"
#include "stepforge/config/config_section.h"
#include "stepforge/config/toml_text.h"

namespace stepforge {

namespace {

constexpr const char* kConfigUsage = "[FILE.toml] [section.key=value ...]";
constexpr const char* kFieldsUsage = "[section.key=value ...]";

/// The command with its parents: "stepforge data show".
std::string full_name(const CLI::App& command) {
  const CLI::App* parent = command.get_parent();
  return parent == nullptr ? command.get_name() : full_name(*parent) + " " + command.get_name();
}

/// The command whose arguments were being parsed.
const CLI::App& chosen_command(const CLI::App& app) {
  const auto chosen = app.get_subcommands();
  return chosen.empty() ? app : chosen_command(*chosen.front());
}

std::string nearest_option(const CLI::App& command, const std::string& typed) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return did_you_mean(typed, names);
}

std::string unknown_option(const CLI::App& command, const std::string& argument) {
  const std::string typed = argument.substr(0, argument.find('='));
  const std::string near = nearest_option(command, typed);
  return format("{} is not an option of `{}`{}", typed, full_name(command),
                near.empty() ? "" : format("; did you mean {}?", near));
}

std::string see_help(const CLI::App& command) {
  return format("; see `{} --help`", full_name(command));
}

/// Whether the command has arguments of its own in place of a configuration file.
bool has_own_arguments(const CLI::App& command) {
  return !command.get_options([](const CLI::Option* option) { return option->get_positional(); }).empty();
}

}  // namespace

std::string HelpFormatter::make_usage(const CLI::App* app, std::string name) const {
  std::string usage = CLI::Formatter::make_usage(app, name.empty() ? "" : full_name(*app));
  const std::string more = app->get_prefix_command() ? "train ... | PROGRAM ..."
                           : app->get_allow_extras() ? (has_own_arguments(*app) ? kFieldsUsage : kConfigUsage)
                                                     : "";
  if (!more.empty()) usage.insert(usage.find_last_not_of('\n') + 1, " " + more);
  return usage;
}

std::string HelpFormatter::make_option_opts(const CLI::Option* option) const {
  if (option->get_type_size() == 0) return "";
  return " " + option->get_type_name() +
         (option->get_expected_max() == CLI::detail::expected_max_vector_size ? " ..." : "");
}

std::string HelpFormatter::make_option_desc(const CLI::Option* option) const {
  const std::string value = option->get_default_str();
  const bool shown = !option->get_required() && !value.empty() && value != "\"\"" && value != "[]" &&
                     value != "false" && value != "{}";
  return option->get_description() + (option->get_required() ? " (required)" : "") +
         (shown ? format(" (default {})", value) : "");
}

CLI::Validator number(double min, std::optional<double> max) {
  return {[min, max](std::string& text) -> std::string {
            double value = 0;
            const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
            if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value))
              return format("\"{}\" is not a number", text);
            if (max && (value < min || value > *max))
              return format("{} is not between {} and {}", text, number_text(min), number_text(*max));
            return value < min ? format("{} is less than {}", text, number_text(min)) : "";
          },
          ""};
}

void accept_config(CLI::App& command, std::string& preset) {
  command.add_option("--preset", preset, "Preset to start from; `stepforge config presets` lists them");
  command.allow_extras();
  command.footer(
      "FILE.toml and fields, written section.key=value or --section.key value, set the configuration, for\n"
      "example run.toml training.steps=10. Fields win over the file, the file over the preset, the preset\n"
      "over the defaults. `stepforge config schema` describes all fields.");
}

void take_plugins(std::vector<std::string>& arguments, Registry& registry) {
  const std::string option = "--plugin";
  for (auto at = arguments.begin(); at != arguments.end() && *at != "launch";) {
    if (*at != option && !at->starts_with(option + "=")) {
      ++at;
      continue;
    }
    const bool has_value = *at != option;
    if (!has_value && at + 1 == arguments.end())
      throw UsageError("--plugin: no file follows; write --plugin FILE, the path of a shared library");
    const std::string file = has_value ? at->substr(option.size() + 1) : *(at + 1);
    at = arguments.erase(at, at + (has_value ? 1 : 2));
    load_plugin(file, option, registry);
  }
}

ConfigArgs config_args(const CLI::App& command, const std::string& preset,
                       const std::shared_ptr<Registry>& registry) {
  ConfigArgs args;
  args.registry = registry;
  const auto shape = make_config_shape(registry);
  if (!preset.empty()) args.overrides.push_back("preset=" + preset);
  bool value_follows = false;
  for (const std::string& argument : command.remaining()) {
    const bool assigns = argument.find('=') != std::string::npos;
    const bool option = !value_follows && argument.starts_with("-");
    if (option && argument.substr(0, argument.find('=')).find('.') == std::string::npos &&
        shape->schema.find(argument.substr(0, argument.find('=')).substr(2)) == nullptr) {
      throw UsageError(unknown_option(command, argument) + see_help(command));
    }
    if (value_follows || assigns || option) {
      args.overrides.push_back(argument);
      value_follows = !value_follows && !assigns;
    } else if (args.file) {
      throw UsageError(format(
          "only one configuration file is allowed, got {} and {}; give the fields of the second one as "
          "section.key=value",
          args.file->string(), argument));
    } else {
      args.file = argument;
    }
  }
  return args;
}

std::string command_list(const CLI::App& command) {
  std::string list;
  for (const CLI::App* child : command.get_subcommands([](const CLI::App*) { return true; }))
    list += format("\n  {:<10} {}", child->get_name(), child->get_description());
  return list;
}

void check_commands(const CLI::App& app, const std::vector<std::string>& arguments) {
  const CLI::App* parent = &app;
  for (const std::string& argument : arguments) {
    const auto children = parent->get_subcommands([](const CLI::App*) { return true; });
    if (children.empty() || argument.starts_with("-")) break;
    std::vector<std::string> names;
    for (const CLI::App* child : children) names.push_back(child->get_name());
    const auto found = std::find(names.begin(), names.end(), argument);
    if (found == names.end()) {
      const std::string near = did_you_mean(argument, names);
      throw UsageError(format("there is no command \"{}\"{}{}", argument,
                              near.empty() ? "" : format("; did you mean \"{}\"?", near), see_help(*parent)));
    }
    parent = children[static_cast<size_t>(found - names.begin())];
  }
  const bool has_children = !parent->get_subcommands([](const CLI::App*) { return true; }).empty();
  const bool options_follow =
      std::any_of(arguments.begin(), arguments.end(),
                  [](const std::string& argument) { return argument.starts_with("-"); });
  if (has_children && !options_follow)
    throw UsageError(format("`{}` needs a command:{}", full_name(*parent), command_list(*parent)));
}

std::string explain(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& command = chosen_command(app);
  std::string text = error.what();
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) {
    const std::vector<std::string> extra = command.remaining();
    const auto option = std::find_if(extra.begin(), extra.end(),
                                     [](const std::string& argument) { return argument.starts_with("-"); });
    if (option != extra.end()) return unknown_option(command, *option) + see_help(command);
    return format("unexpected argument \"{}\" for `{}`", extra.empty() ? "" : extra.front(),
                  full_name(command)) +
           see_help(command);
  }
  if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr)
    return format("`{}`: {}", full_name(command), text) + see_help(command);
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr)
    return format("{}: expected a value", text.substr(0, text.find(':'))) + see_help(command);
  return text;
}

}  // namespace stepforge
