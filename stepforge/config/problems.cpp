// SPDX-License-Identifier: Apache-2.0
#include "stepforge/config/problems.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "stepforge/base/format.h"

namespace stepforge {

std::string ConfigLayer::place(TextPosition position) const {
  if (kind == Kind::command_line || position.line == 0) return name;
  return format("{}:{}:{}", name, position.line, position.column);
}

void Problems::add(const ConfigLayer& layer, TextPosition position, std::string_view text) {
  found_.push_back({layer.kind, position, format("{}: {}", layer.place(position), text)});
}

void Problems::add_rule(std::string text) {
  rules_.push_back(std::move(text));
}

bool Problems::is_bad(std::string_view field) const {
  const auto within = [](std::string_view inner, std::string_view outer) {
    return outer.empty() ||
           (inner.starts_with(outer) && (inner.size() == outer.size() || inner[outer.size()] == '.'));
  };
  return std::any_of(bad_fields_.begin(), bad_fields_.end(),
                     [&](const std::string& bad) { return within(bad, field) || within(field, bad); });
}

void Problems::throw_if_any() const {
  if (empty()) return;
  std::vector<Problem> sorted = found_;
  std::stable_sort(sorted.begin(), sorted.end(), [](const Problem& a, const Problem& b) {
    return std::tuple(a.layer, a.position.line, a.position.column) <
           std::tuple(b.layer, b.position.line, b.position.column);
  });
  std::vector<std::string> lines;
  for (const Problem& problem : sorted) lines.push_back(problem.text);
  lines.insert(lines.end(), rules_.begin(), rules_.end());
  if (lines.size() == 1) throw UsageError(lines.front());
  throw UsageError(format("{} errors in the configuration:\n  {}", lines.size(), join(lines, "\n  ")));
}

}  // namespace stepforge
