// SPDX-License-Identifier: Apache-2.0
// The errors found in one configuration, gathered so that all are reported together.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/config/value.h"

namespace stepforge {

/// One source of values: a preset, a file, the command line. A later layer wins.
struct ConfigLayer {
  enum class Kind { preset, file, command_line };

  Kind kind = Kind::file;
  std::string name;  ///< "preset debug", "run.toml", "command line"

  /// "run.toml:12:9", "preset debug:3:1", "command line": for errors.
  std::string place(TextPosition position) const;
};

class Problems {
 public:
  void add(const ConfigLayer& layer, TextPosition position, std::string_view text);
  /// A rule among several fields, which carries its origins in the text.
  void add_rule(std::string text);

  /// Remembers that the value of this field is not to be judged further; "" means all of them.
  void mark_bad(std::string_view field) { bad_fields_.emplace(field); }
  /// Whether the field, a part of it or the table around it is marked.
  bool is_bad(std::string_view field) const;

  bool empty() const { return found_.empty() && rules_.empty(); }
  /// Throws UsageError with all of them, in the order of layers and of lines in the file.
  void throw_if_any() const;

 private:
  struct Problem {
    ConfigLayer::Kind layer;
    TextPosition position;
    std::string text;
  };
  std::vector<Problem> found_;
  std::vector<std::string> rules_;
  std::set<std::string, std::less<>> bad_fields_;
};

}  // namespace stepforge
