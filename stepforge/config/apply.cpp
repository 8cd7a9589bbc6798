// SPDX-License-Identifier: Apache-2.0
#include "stepforge/config/apply.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "stepforge/base/format.h"
#include "stepforge/base/utf8.h"
#include "stepforge/config/config_section.h"
#include "stepforge/config/foreign_keys.h"
#include "stepforge/config/override_value.h"
#include "stepforge/config/toml_text.h"

namespace stepforge {

namespace {

using Kind = ConfigValue::Kind;

/// The choice that `text` spells in another common way ("AdamW", "bfloat16"), else `text`.
std::string canonical_choice(const FieldRules& rules, const std::string& text) {
  constexpr auto kSynonyms = std::to_array<std::pair<std::string_view, std::string_view>>({
      {"float32", "fp32"},
      {"bfloat16", "bf16"},
      {"float16", "fp16"},
      {"half", "fp16"},
      {"adamw_torch", "adamw"},
      {"adamw_torch_fused", "adamw"},
      {"adamw_torch_8bit", "adamw_8bit"},
      {"adamw_bnb_8bit", "adamw_8bit"},
  });
  std::string name = text;
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  for (const auto& [other, ours] : kSynonyms)
    if (name == other) name = ours;
  const bool is_choice = std::find(rules.choices.begin(), rules.choices.end(), name) != rules.choices.end();
  return is_choice ? name : text;
}

bool accepted_text(const FieldRules& rules, const std::string& text) {
  if (text.find('\0') != std::string::npos || (rules.non_empty && text.empty())) return false;
  return rules.choices.empty() ||
         std::find(rules.choices.begin(), rules.choices.end(), text) != rules.choices.end();
}

/// Accepts the spellings of YAML and Python too.
std::optional<bool> boolean_of(const ConfigValue& value) {
  if (value.kind == Kind::boolean) return value.boolean;
  if (value.kind != Kind::text) return std::nullopt;
  for (const std::string_view yes : {"yes", "on", "True"})
    if (value.text == yes) return true;
  for (const std::string_view no : {"no", "off", "False"})
    if (value.text == no) return false;
  return std::nullopt;
}

/// Writes a value into a slot. Returns false and changes nothing if the type or the range is wrong.
struct Assignment {
  const FieldRules& rules;
  const ConfigValue& value;
  bool is_list = false;  ///< Whether a ChoiceSlot is a list.

  bool operator()(bool* slot) const {
    const auto boolean = boolean_of(value);
    if (boolean) *slot = *boolean;
    return boolean.has_value();
  }
  bool operator()(int64_t* slot) const {
    if (value.kind != Kind::integer || !in_range(rules, static_cast<double>(value.integer))) return false;
    *slot = value.integer;
    return true;
  }
  bool operator()(double* slot) const {
    if (value.kind != Kind::integer && value.kind != Kind::number) return false;
    const double number = value.kind == Kind::integer ? static_cast<double>(value.integer) : value.number;
    if (!in_range(rules, number)) return false;
    *slot = number;
    return true;
  }
  bool operator()(std::string* slot) const {
    if (value.kind != Kind::text) return false;
    const std::string text = canonical_choice(rules, value.text);
    if (!accepted_text(rules, text)) return false;
    *slot = text;
    return true;
  }
  template <typename Element>
  bool operator()(std::vector<Element>* slot) const {
    if (value.kind != Kind::list) return false;
    std::vector<Element> elements(value.list.size());
    for (size_t i = 0; i < elements.size(); ++i) {
      if (!Assignment{rules, value.list[i]}(&elements[i])) return false;
    }
    *slot = std::move(elements);
    return true;
  }
  bool operator()(const ChoiceSlot& slot) const {
    std::vector<std::string> names;
    if (is_list) {
      if (!operator()(&names)) return false;
    } else if (!operator()(&names.emplace_back())) {
      return false;
    }
    slot.set(slot.value, names);
    return true;
  }
  bool operator()(const TableSlot&) const { return false; }
  bool operator()(const TableListSlot&) const { return false; }
};

bool is_whole(double number) {
  return number == std::floor(number) && std::abs(number) < 1e15;
}

/// A suggestion of what to write instead, or "".
std::string spelling_remedy(const Field& field, const ConfigValue& value) {
  if (is_list(field.type) && value.kind != Kind::list) return format("write [{}]", shown_value(value));
  const ConfigValue* item = &value;
  if (is_list(field.type)) {
    const auto wrong = std::find_if(value.list.begin(), value.list.end(), [&](const ConfigValue& one) {
      return one.kind == Kind::text && !accepted_text(field.rules, one.text);
    });
    if (wrong == value.list.end()) return "";
    item = &*wrong;
  }
  if (!field.rules.choices.empty() && item->kind == Kind::text) {
    const std::string near =
        did_you_mean(item->text, {field.rules.choices.begin(), field.rules.choices.end()});
    return near.empty() ? "" : format("did you mean \"{}\"?", near);
  }
  if (field.type == FieldType::text && value.kind != Kind::text && value.kind <= Kind::number) {
    return format("write \"{}\"", shown_value(value));
  }
  if (field.type == FieldType::integer && value.kind == Kind::number && is_whole(value.number)) {
    return format("write {}", static_cast<int64_t>(value.number));
  }
  if (field.type <= FieldType::number && value.kind == Kind::text) {
    try {
      const Kind unquoted = parse_toml_value(value.text).kind;
      if (unquoted == (field.type == FieldType::boolean ? Kind::boolean : Kind::integer))
        return format("write {} without quotes", value.text);
    } catch (const TomlError&) {
      return "";
    }
  }
  return "";
}

/// Full names of keys of `config` that the unknown key `name` of the table `path` may mean: a similar key of that table,
/// or at the top level the same key in any section.
std::vector<std::string> meant_keys(const TableSchema& config, const TableSchema& schema,
                                    std::string_view path, std::string_view name) {
  const std::string here = did_you_mean(name, schema.names());
  if (!here.empty()) return {dotted(path, here)};
  std::vector<std::string> found;
  if (!path.empty()) return found;
  for (const Field& section : config.fields()) {
    if (section.type == FieldType::table && section.table->find(name) != nullptr)
      found.push_back(dotted(section.name, name));
  }
  return found;
}

/// A key of an earlier version, or, with `value`, a choice of the key.
struct Renamed {
  std::string_view key;
  std::string_view value;
  std::string_view now;
};

constexpr auto kRenamed = std::to_array<Renamed>({
    {"parallelism.fsdp_cut", "",
     "parallelism.fsdp_partition (interval is now flat, whole_tensor is by_tensor, dimension is by_dim)"},
    {"parallelism.fsdp_partition", "interval", "\"flat\""},
    {"parallelism.fsdp_partition", "whole_tensor", "\"by_tensor\""},
    {"parallelism.fsdp_partition", "dimension", "\"by_dim\""},
    {"activation_checkpoint.segments", "", "activation_checkpoint.regions"},
    {"activation_checkpoint.mode", "segments", "\"regions\""},
});

/// A hint about a key that chooses a device in other trainers, or "".
std::string device_hint(std::string_view name) {
  constexpr std::array<std::string_view, 9> kNames = {
      "device", "devices", "device_type", "device_map", "accelerator", "gpus", "n_gpus", "num_gpus", "cuda"};
  if (std::ranges::find(kNames, name) == kNames.end()) return "";
  return "use training.device";
}

/// "was renamed to ...", or "".
std::string rename_note(std::string_view key, std::string_view value = "") {
  for (const Renamed& entry : kRenamed) {
    if (entry.key == key && entry.value == value) return format("was renamed to {}", entry.now);
  }
  return "";
}

}  // namespace

std::string ConfigLayer::place(TextPosition position) const {
  return is_file && position.line > 0 ? format("{}:{}:{}", name, position.line, position.column) : name;
}

bool RefusedFields::contains(std::string_view field) const {
  const auto within = [](std::string_view inner, std::string_view outer) {
    return outer.empty() ||
           (inner.starts_with(outer) && (inner.size() == outer.size() || inner[outer.size()] == '.'));
  };
  return std::any_of(fields_.begin(), fields_.end(), [&](const std::string& refused) {
    return within(refused, field) || within(field, refused);
  });
}

LayerApplier::LayerApplier(LoadedConfig& loaded, ErrorList& errors, RefusedFields& refused, ConfigLayer layer)
    : LayerApplier({schema_of(loaded.config), &loaded.config, loaded.origins}, errors, refused,
                   std::move(layer)) {}

void LayerApplier::add_error(TextPosition position, std::string_view error) {
  found_.emplace(position, format("{}: {}", layer_.place(position), error));
}

void LayerApplier::flush_errors() {
  for (const auto& [position, error] : found_) errors_.add(error);
  found_.clear();
}

void LayerApplier::set_origin(const std::string& path, TextPosition position) {
  auto& origins = target_.origins;
  // Forget the elements of a list from an earlier layer.
  const std::string inside = path + ".";
  auto first = origins.lower_bound(inside);
  while (first != origins.end() && first->first.starts_with(inside)) first = origins.erase(first);
  origins[path] = layer_.place(position);
}

void LayerApplier::refuse(const TableSchema& schema, const Field& field, const ConfigValue& value,
                          const std::string& path) {
  std::string remedy = value.kind == Kind::text ? rename_note(path, value.text) : "";
  if (remedy.empty()) remedy = spelling_remedy(field, value);
  if (remedy.empty() && field.type != FieldType::table && target_.is_config)
    remedy = "the default is " + default_value(schema, field);
  add_error(value.position, format("{} = {}: expected {}{}", path, shown_value(value), expected_text(field),
                                   remedy.empty() ? "" : "; " + remedy));
  refused_.add(path);
}

void LayerApplier::refuse_unknown(const TableSchema& schema, std::string_view known, std::string_view unknown,
                                  TextPosition position) {
  const std::string path = dotted(known, unknown);
  if (const std::string note = rename_note(path); !note.empty()) {
    add_error(position, format("{}: {}", path, note));
    refused_.add(known);
    return;
  }
  const std::string_view kind = known.empty() ? "section or key" : "key";
  std::string remedy = target_.is_config ? device_hint(unknown) : "";
  if (remedy.empty() && target_.is_config) remedy = foreign_hint(path);
  if (remedy.empty()) {
    std::vector<std::string> meant = meant_keys(target_.schema, schema, known, unknown);
    for (std::string& name : meant) {
      const Field* top = target_.schema.find(name);
      if (top != nullptr && top->type == FieldType::table) name = format("[{}]", name);
    }
    remedy = meant.empty() ? "known keys: " + join(schema.names(), ", ")
                           : format("did you mean {}?", join(meant, " or "));
  }
  add_error(position, format("{}: unknown {}; {}", printable_line(path), kind, remedy));
}

void LayerApplier::apply_table(const TableSchema& schema, void* object, const ConfigValue& table,
                               std::string_view path) {
  for (const ConfigEntry& entry : table.table) {
    const Field* field = schema.find(entry.key);
    const bool is_section = path.empty() && entry.value.kind == Kind::table;
    if (field == nullptr && is_section && layer_.lacks_plugins) continue;
    if (field == nullptr) {
      refuse_unknown(schema, path, entry.key, entry.position);
    } else {
      apply_field(schema, *field, field->slot(object), entry.value, dotted(path, entry.key));
    }
  }
}

void LayerApplier::apply_field(const TableSchema& schema, const Field& field, const FieldSlot& slot,
                               const ConfigValue& value, const std::string& path) {
  const auto* table = std::get_if<TableSlot>(&slot);
  if (table != nullptr && value.kind == Kind::table) {
    apply_table(*field.table, table->object, value, path);
    return;
  }
  const auto* tables = std::get_if<TableListSlot>(&slot);
  if (tables != nullptr && value.kind == Kind::list) {
    apply_tables(field, *tables, value, path);
    return;
  }
  FieldRules rules = field.rules;
  if (layer_.lacks_plugins && !rules.open_to.empty()) rules.choices.clear();
  if (!std::visit(Assignment{rules, value, is_list(field.type)}, slot)) {
    refuse(schema, field, value, path);
    return;
  }
  set_origin(path, value.position);
}

void LayerApplier::apply_tables(const Field& field, const TableListSlot& slot, const ConfigValue& value,
                                const std::string& path) {
  set_origin(path, value.position);
  slot.resize(slot.list, 0);
  slot.resize(slot.list, value.list.size());
  for (size_t i = 0; i < value.list.size(); ++i) {
    const ConfigValue& item = value.list[i];
    const std::string item_path = format("{}.{}", path, i);
    if (item.kind == Kind::table) {
      target_.origins[item_path] = layer_.place(item.position);
      apply_table(*field.table, slot.at(slot.list, i), item, item_path);
    } else {
      add_error(item.position, format("{} = {}: expected a table with the keys {}", item_path,
                                      shown_value(item), join(field.table->names(), ", ")));
      refused_.add(item_path);
    }
  }
}

void LayerApplier::apply(const ConfigValue& root) {
  apply_table(target_.schema, target_.object, root, "");
  flush_errors();
}

void LayerApplier::apply(const Override& setting) {
  if (!setting.error.empty()) {
    add_error({}, setting.error);
    return flush_errors();
  }
  const FieldRef ref = find_field(target_.schema, target_.object, setting.name, /*may_append=*/true);
  if (ref.field == nullptr && ref.schema != nullptr) {
    refuse_unknown(*ref.schema, ref.known, ref.unknown, {});
  } else if (ref.field == nullptr) {
    add_error({}, format("{}.{}: {} has no member \"{}\"", ref.known, ref.unknown, ref.known, ref.unknown));
  } else {
    try {
      apply_field(*ref.schema, *ref.field, slot_of(ref), override_value(*ref.field, setting.text), ref.known);
    } catch (const TomlError& error) {
      add_error({}, format("{} = {}: not a TOML value: {}", ref.known, setting.text, error.what()));
      refused_.add(ref.known);
    }
  }
  flush_errors();
}

std::vector<Override> read_overrides(std::span<const std::string> arguments) {
  const auto trimmed = [](std::string_view text) {
    const size_t first = text.find_first_not_of(" \t");
    if (first == std::string_view::npos) return std::string();
    return std::string(text.substr(first, text.find_last_not_of(" \t") - first + 1));
  };
  std::vector<Override> overrides;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string_view argument = arguments[i];
    const bool is_option = argument.starts_with("--");
    const std::string_view body = is_option ? argument.substr(2) : argument;
    const size_t equals = body.find('=');
    if (equals != std::string_view::npos) {
      overrides.push_back({trimmed(body.substr(0, equals)), trimmed(body.substr(equals + 1))});
    } else if (is_option && i + 1 < arguments.size() && !arguments[i + 1].starts_with("--")) {
      overrides.push_back({std::string(body), trimmed(arguments[++i])});
    } else if (is_option) {
      overrides.push_back({.error = format("{}: no value follows; write {}=VALUE", argument, argument)});
    } else {
      overrides.push_back({.error = format("\"{}\": expected SECTION.KEY=VALUE", argument)});
    }
  }
  return overrides;
}

}  // namespace stepforge
