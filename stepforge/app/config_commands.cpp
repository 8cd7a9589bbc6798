// SPDX-License-Identifier: Apache-2.0
// `stepforge config show | schema | presets | convert`.
#include <iostream>

#include <sys/ioctl.h>
#include <unistd.h>

#include "stepforge/app/commands.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/config/config_section.h"
#include "stepforge/config/convert.h"
#include "stepforge/config/presets.h"
#include "stepforge/config/schema_docs.h"
#include "stepforge/plan/unread_options.h"

namespace stepforge {

namespace {

constexpr int64_t kMaxFileBytes = int64_t{4} << 20;

size_t output_width() {
  constexpr size_t without_terminal = 100;
  winsize size{};
  const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : without_terminal;
}

}  // namespace

int config_show_command(const ConfigArgs& args) {
  std::cout << config_toml_with_places(args.load());
  return 0;
}

int config_schema_command(const std::string& name, const std::string& format_name,
                          const std::shared_ptr<Registry>& registry) {
  const auto shape = make_config_shape(registry);
  if (format_name == "markdown") {
    std::cout << schema_markdown(shape->schema);
  } else if (format_name == "json") {
    std::cout << schema_json(name, shape->schema).dump(2) << '\n';
  } else {
    std::cout << schema_help(name, output_width(), shape->schema);
  }
  return 0;
}

int config_presets_command() {
  for (const EmbeddedPreset& preset : embedded_presets())
    std::cout << format("{:<16} {}\n", preset.name, preset.summary());
  return 0;
}

namespace {

/// Lines of TOML comments.
void print_comments(const char* heading, const std::vector<std::string>& lines) {
  if (lines.empty()) return;
  std::cout << format("\n# {}:\n", heading);
  for (const std::string& line : lines) {
    std::string comment = "# " + line;
    for (size_t at = 0; (at = comment.find('\n', at)) != std::string::npos; ++at)
      comment.insert(at + 1, "# ");
    std::cout << comment << '\n';
  }
}

/// What training would refuse in a translated configuration, because nothing reads it.
std::vector<std::string> unread_options(const std::string& toml) {
  try {
    refuse_unread_options(parse_config(toml, "the result"));
    return {};
  } catch (const UsageError& unread) {
    return {unread.what()};
  }
}

}  // namespace

int config_convert_command(const std::filesystem::path& file) {
  const ConvertedConfig converted = convert_config(read_file(file, kMaxFileBytes), file.string());
  const std::string toml = format("# From {}.\n{}", file.string(), converted.toml);
  std::cout << toml;
  print_comments("Not translated", converted.lost);
  print_comments("Without effect", unread_options(toml));
  if (converted.lost.empty()) return 0;
  std::cerr << format("{} of the settings of {} could not be translated; they are listed at the end\n",
                      converted.lost.size(), file.string());
  return 0;
}

}  // namespace stepforge
