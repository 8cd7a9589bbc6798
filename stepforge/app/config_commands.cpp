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

int config_convert_command(const std::filesystem::path& file) {
  ConvertedConfig converted = convert_config(read_file(file, kMaxFileBytes), file.string());
  const std::string text = format("# From {}.\n{}", file.string(), converted.toml);
  std::cout << text;
  try {
    refuse_unread_options(parse_config(text, "the result"));
  } catch (const UsageError& unread) {
    converted.lost.emplace_back(unread.what());
  }
  if (converted.lost.empty()) return 0;
  std::cout << "\n# Not translated:\n";
  for (const std::string& line : converted.lost) {
    std::string comment = "# " + line;
    for (size_t at = 0; (at = comment.find('\n', at)) != std::string::npos; ++at)
      comment.insert(at + 1, "# ");
    std::cout << comment << '\n';
  }
  std::cerr << format("{} of the settings of {} could not be translated; they are listed at the end\n",
                      converted.lost.size(), file.string());
  return 0;
}

}  // namespace stepforge
