// SPDX-License-Identifier: Apache-2.0
#include "stepforge/plan/unread_options.h"

#include <algorithm>
#include <utility>

#include "stepforge/base/error_list.h"
#include "stepforge/base/format.h"
#include "stepforge/base/words.h"
#include "stepforge/config/schema.h"
#include "stepforge/config/toml_text.h"

namespace stepforge {

namespace {

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  while (!text.empty()) {
    const std::size_t end = text.find(' ');
    words.emplace_back(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return words;
}

std::string joined(const std::string& table, const std::string& name) {
  return table.empty() ? name : format("{}.{}", table, name);
}

class UnreadSearch {
 public:
  UnreadSearch(const LoadedConfig& loaded, JobRanks ranks)
      : loaded_(loaded), ranks_(ranks), config_(loaded.config) {}

  std::vector<UnreadOption> find() {
    walk(config_schema(), &config_, "", "");
    return std::move(found_);
  }

 private:
  /// `table`: where it is in the configuration; `rules`: the same in option_rules().
  void walk(const TableSchema& schema, void* object, const std::string& table, const std::string& rules) {
    const auto usual = schema.make_default();
    for (const Field& field : schema.fields()) {
      const std::string name = joined(table, field.name);
      const FieldSlot slot = field.slot(object);
      if (field.type == FieldType::table) {
        walk(*field.table, std::get<TableSlot>(slot).object, name, joined(rules, field.name));
        continue;
      }
      if (is_chosen(name) && toml_value(field, slot) != toml_value(field, field.slot(usual.get())) &&
          judge(field, slot, object, table, rules))
        continue;
      if (field.type != FieldType::tables) continue;
      const auto& list = std::get<TableListSlot>(slot);
      for (std::size_t i = 0; i < list.size(list.list); ++i) {
        walk(*field.table, list.at(list.list, i), format("{}.{}", name, i),
             field.is_recursive ? rules : joined(rules, field.name) + "[]");
      }
    }
  }

  /// Lists of tables are chosen as a whole.
  bool is_chosen(const std::string& name) const { return loaded_.chosen.contains(name); }

  /// Whether the option is not read; if so, it is added.
  bool judge(const Field& field, const FieldSlot& slot, const void* object, const std::string& table,
             const std::string& rules) {
    for (const OptionRule& rule : option_rules()) {
      if (rule.table != rules || rule.reads == nullptr || !has_word(rule.options, field.name)) continue;
      if (rule.reads({config_, ranks_, field.name, object})) continue;
      const std::string name = joined(table, field.name);
      const std::vector<std::string> choosers = shown_choosers(rule, table);
      UnreadOption unread{.name = name,
                          .value = toml_value(field, slot),
                          .cause = std::string(rule.reason),
                          .remedy = "remove it",
                          .action = is_turned_off(name, choosers) ? UnreadAction::name : rule.action};
      if (!choosers.empty()) {
        unread.cause = "with " + values_of(choosers);
        unread.remedy += ", or change " + join(choosers, " or ");
      }
      found_.push_back(std::move(unread));
      return true;
    }
    return false;
  }

  /// The first chooser, and those that do not have their default.
  std::vector<std::string> shown_choosers(const OptionRule& rule, const std::string& table) {
    std::vector<std::string> shown;
    for (const std::string& chooser : words_of(rule.choosers)) {
      const std::string name = chooser.starts_with('.') ? table + chooser : chooser;
      if (shown.empty() || loaded_.origins.contains(name)) shown.push_back(name);
    }
    return shown;
  }

  std::string values_of(const std::vector<std::string>& choosers) {
    std::vector<std::string> values;
    for (const std::string& name : choosers) {
      const FieldRef ref = find_field(config_schema(), &config_, name);
      values.push_back(format("{} = {}", name, toml_value(*ref.field, slot_of(ref))));
    }
    return join(values, " and ");
  }

  /// Whether the option is in a file, and a chooser on the command line.
  bool is_turned_off(const std::string& name, const std::vector<std::string>& choosers) const {
    constexpr std::string_view kCommandLine = "command line";
    return where(loaded_, name) != kCommandLine &&
           std::ranges::any_of(
               choosers, [&](const std::string& chooser) { return where(loaded_, chooser) == kCommandLine; });
  }

  const LoadedConfig& loaded_;
  JobRanks ranks_;
  Config config_;
  std::vector<UnreadOption> found_;
};

}  // namespace

std::vector<UnreadOption> find_unread_options(const LoadedConfig& loaded, JobRanks ranks) {
  return UnreadSearch(loaded, ranks).find();
}

void refuse_unread_options(const LoadedConfig& loaded) {
  ErrorList errors = ErrorList::with_places("the configuration");
  for (const UnreadOption& unread : find_unread_options(loaded)) {
    if (unread.action != UnreadAction::refuse) continue;
    errors.add(format("{}: {} = {}: {} it is not read; {}", where(loaded, unread.name), unread.name,
                      unread.value, unread.cause, unread.remedy));
  }
  errors.throw_if_any<UsageError>();
}

std::vector<std::string> unread_notes(const LoadedConfig& loaded, JobRanks ranks) {
  std::vector<std::pair<std::string, std::vector<std::string>>> by_cause;
  for (const UnreadOption& unread : find_unread_options(loaded, ranks)) {
    if (unread.action != UnreadAction::name) continue;
    auto found = std::ranges::find(by_cause, unread.cause, [](const auto& entry) { return entry.first; });
    if (found == by_cause.end()) found = by_cause.insert(by_cause.end(), {unread.cause, {}});
    found->second.push_back(format("{} = {}", unread.name, unread.value));
  }
  std::vector<std::string> lines;
  lines.reserve(by_cause.size());
  for (const auto& [cause, options] : by_cause)
    lines.push_back(format("not read {}: {}", cause, join(options, ", ")));
  return lines;
}

}  // namespace stepforge
