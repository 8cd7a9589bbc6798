// SPDX-License-Identifier: Apache-2.0
// `stepforge config show | schema | presets | convert`.
#include <iostream>
#include <sstream>

#include <sys/ioctl.h>
#include <unistd.h>

#include "stepforge/app/commands.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/base/utf8.h"
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
  std::cout << printable(config_toml_with_places(args.load()));
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
  for (const EmbeddedFile& preset : embedded_presets())
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
    std::cout << printable(comment) << '\n';
  }
}

/// The line of an option's value in the text that it was read from: 12 of "the result:12:9".
size_t line_of(const std::string& place) {
  const size_t end = place.rfind(':');
  return std::stoul(place.substr(place.rfind(':', end - 1) + 1));
}

/// Turns settings of a translated configuration that training would refuse, because nothing reads them, into comments.
/// Adds other settings without effect to `notes`.
std::string without_unread(const std::string& toml, std::vector<std::string>& notes) {
  LoadedConfig loaded;
  try {
    loaded = parse_converted(toml);
  } catch (const UsageError& refused) {
    notes.emplace_back(refused.what());
    return toml;
  }
  std::vector<std::string> lines;
  std::istringstream text(toml);
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  for (const UnreadOption& unread : find_unread_options(loaded)) {
    std::string& line = lines.at(line_of(where(loaded, unread.name)) - 1);
    const std::string key = unread.name.substr(unread.name.rfind('.') + 1);
    if (unread.action == UnreadAction::refuse && line.starts_with(key + " =")) {
      line = format("# {}  # not read {}", line, unread.cause);
    } else {
      notes.push_back(format("{} = {}: not read {}", unread.name, unread.value, unread.cause));
    }
  }
  return join(lines, "\n") + "\n";
}

/// The names, in lines of a comment.
std::vector<std::string> filled_lines(const std::vector<std::string>& names) {
  constexpr size_t width = 100;
  std::vector<std::string> lines;
  for (const std::string& name : names) {
    if (lines.empty() || lines.back().size() + name.size() > width) {
      lines.push_back(name);
    } else {
      lines.back() += ", " + name;
    }
  }
  return lines;
}

std::string refusal_of(const std::string& file, const ConvertedConfig& converted) {
  return format(
      "{} ({}) asks for training that is not available yet; without it another model would be trained:\n  "
      "{}\n"
      "--force converts the rest\n",
      file, converted.trainer, join(converted.refused, "\n  "));
}

}  // namespace

int config_convert_command(const ConvertArgs& args) {
  constexpr int exit_refused = 3;
  const std::string file = args.file.string();
  const ConvertedConfig converted =
      convert_config(read_file(args.file, kMaxFileBytes), file, {.from = args.from, .ranks = args.ranks});
  if (!converted.refused.empty() && !args.force) {
    std::cerr << printable(refusal_of(file, converted));
    return exit_refused;
  }
  std::vector<std::string> unread;
  std::cout << printable(converted.problem.empty() ? without_unread(converted.toml, unread) : converted.toml);
  print_comments("Not available yet: this trains another model", converted.refused);
  print_comments("Not translated", converted.lost);
  print_comments("Nothing is needed for", converted.needless);
  print_comments("Off", filled_lines(converted.off));
  if (!converted.problem.empty()) {
    print_comments("Not a valid configuration yet", {converted.problem});
  } else {
    print_comments("Without effect", unread);
  }
  std::cerr << format(
      "{} ({}): {} settings: {} translated, {} need nothing, {} off, {} refused, {} not translated; "
      "all are listed at the end\n",
      file, converted.trainer, converted.n_settings, converted.n_translated, converted.n_needless,
      converted.off.size(), converted.n_refused, converted.n_lost);
  return 0;
}

}  // namespace stepforge
