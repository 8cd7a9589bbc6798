// SPDX-License-Identifier: Apache-2.0
#include "stepforge/config/convert.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <sstream>

#include "stepforge/base/error_list.h"
#include "stepforge/base/format.h"
#include "stepforge/config/apply.h"
#include "stepforge/config/foreign_keys.h"
#include "stepforge/config/foreign_reader.h"
#include "stepforge/config/presets.h"
#include "stepforge/config/toml_text.h"

namespace stepforge {

namespace {

using Kind = ConfigValue::Kind;

std::optional<double> number_of(const ConfigValue* value) {
  if (value == nullptr) return std::nullopt;
  if (value->kind == Kind::integer) return static_cast<double>(value->integer);
  if (value->kind == Kind::number) return value->number;
  return std::nullopt;
}

bool is_true(const ConfigValue* value) {
  return value != nullptr && value->kind == Kind::boolean && value->boolean;
}

std::string lower_text(const ConfigValue& value) {
  std::string text = value.text;
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

/// Whether the value disables its feature or is the neutral one, such as a degree of 1.
bool is_off(const ConfigValue& value) {
  switch (value.kind) {
    case Kind::boolean:
      return !value.boolean;
    case Kind::integer:
    case Kind::number:
      return *number_of(&value) <= 1;
    case Kind::text: {
      const std::string text = lower_text(value);
      return text.empty() || text == "no" || text == "none" || text == "disabled";
    }
    case Kind::list:
      return value.list.empty();
    case Kind::table:
      return value.table.empty();
    case Kind::date:
      return false;
  }
  return false;
}

/// The texts of a list, or the parts of one text between commas.
std::vector<std::string> names_in(const ConfigValue& value) {
  std::vector<std::string> names;
  if (value.kind == Kind::list) {
    for (const ConfigValue& element : value.list) names.push_back(element.text);
  } else {
    std::istringstream text(value.text);
    for (std::string name; std::getline(text, name, ',');) names.push_back(name);
  }
  for (std::string& name : names) {
    name.erase(0, name.find_first_not_of(' '));
    name.erase(name.find_last_not_of(' ') + 1);
  }
  std::erase(names, "");
  return names;
}

struct Setting {
  std::string name;
  ConfigValue value;
};

void flatten(const ConfigValue& table, const std::string& path, std::vector<Setting>& settings) {
  for (const ConfigEntry& entry : table.table) {
    const std::string name = dotted(path, entry.key);
    if (entry.value.kind == Kind::table) {
      flatten(entry.value, name, settings);
    } else {
      settings.push_back({name, entry.value});
    }
  }
}

class Conversion {
 public:
  explicit Conversion(const ConfigValue& table) { flatten(table, "", settings_); }

  ConvertedConfig run() {
    for (const Setting& setting : settings_) translate(setting);
    // Last, since they disable what other keys have set.
    for (const auto& [setting, key] : strategies_) set_strategy(setting, key);
    converted_.toml = written();
    return std::move(converted_);
  }

 private:
  void translate(const Setting& setting);
  void translate_by_rule(const Setting& setting, const ForeignKey& key);
  void set_accumulated(const Setting& setting);
  void set_recompute(const Setting& setting);
  void set_decay(const Setting& setting);
  void set_strategy(const Setting& setting, const ForeignKey& key);
  void set_sources(const Setting& setting, std::string_view ours);
  void set_datasets(const Setting& setting, std::string_view ours);
  void set_stage(const Setting& setting);
  void set_packing(const Setting& setting, std::string_view ours);

  /// Sets our field `ours` to the TOML `value`; a value that the field refuses is lost.
  void set(const Setting& setting, std::string_view ours, std::string value) {
    ErrorList errors = ErrorList::with_places("the configuration");
    RefusedFields refused;
    LayerApplier(loaded_, errors, refused, {shown(setting)})
        .apply(Override{std::string(ours), std::move(value)});
    if (errors.empty()) {
      written_.emplace(ours);
    } else {
      converted_.lost.push_back(errors.message());
    }
  }
  void lose(const Setting& setting, std::string_view why) {
    converted_.lost.push_back(format("{}: {}", shown(setting), why));
  }
  static std::string shown(const Setting& setting) {
    return format("{} = {}", setting.name, shown_value(setting.value));
  }

  /// The value of the first of these keys that is in the file, or nullptr.
  const ConfigValue* foreign(std::initializer_list<std::string_view> names) const {
    for (const std::string_view name : names) {
      for (const Setting& setting : settings_) {
        if (setting.name == name) return &setting.value;
      }
    }
    return nullptr;
  }
  std::optional<double> steps() const {
    const auto found = number_of(foreign({"max_steps", "train_iters", "total_step", "training.steps"}));
    return found && *found > 0 ? found : std::nullopt;
  }

  std::string written();

  std::vector<Setting> settings_;
  LoadedConfig loaded_;
  std::vector<std::pair<Setting, ForeignKey>> strategies_;
  std::set<std::string, std::less<>> written_;
  ConvertedConfig converted_;
};

void Conversion::translate(const Setting& setting) {
  if (setting.value.kind == Kind::text && setting.value.text.empty())
    return;  // null is read as an empty text
  if (const ForeignKey* key = find_foreign_key(setting.name)) {
    translate_by_rule(setting, *key);
    return;
  }
  Config scratch;
  if (find_field(config_schema(), &scratch, setting.name).field != nullptr) {
    set(setting, setting.name, toml_value(setting.value));
  } else if (!is_off(setting.value)) {
    lose(setting, "unknown key");
  }
}

void Conversion::translate_by_rule(const Setting& setting, const ForeignKey& key) {
  const ConfigValue& value = setting.value;
  switch (key.rule) {
    case ForeignRule::copy:
      if (!key.ours.empty()) return set(setting, key.ours, toml_value(value));
      if (!is_off(value) && (key.fixed.empty() || value.text != key.fixed)) lose(setting, key.note);
      return;
    case ForeignRule::positive:
      if (number_of(&value).value_or(0) > 0) set(setting, key.ours, toml_value(value));
      return;
    case ForeignRule::when_true:
      if (is_true(&value)) set(setting, key.ours, std::string(key.fixed));
      return;
    case ForeignRule::negate:
      return set(setting, key.ours, is_true(&value) ? "false" : "true");
    case ForeignRule::sources:
      return set_sources(setting, key.ours);
    case ForeignRule::datasets:
      return set_datasets(setting, key.ours);
    case ForeignRule::stage:
      return set_stage(setting);
    case ForeignRule::packing:
      return set_packing(setting, key.ours);
    case ForeignRule::tokenizer:
      set(setting, "tokenizer.type", "hf");
      return set(setting, key.ours, toml_value(value));
    case ForeignRule::weights:
      set(setting, "tokenizer.type", "hf");
      set(setting, "tokenizer.path", toml_value(value));
      return set(setting, key.ours, toml_value(value));
    case ForeignRule::accumulation:
      return set_accumulated(setting);
    case ForeignRule::epochs: {
      const double epochs = number_of(&value).value_or(0);
      if (steps()) return;
      if (epochs != std::floor(epochs))
        return lose(setting, "epochs must be an integer; set training.steps instead");
      return set(setting, key.ours, format("{}", static_cast<int64_t>(epochs)));
    }
    case ForeignRule::warmup_share: {
      const double share = number_of(&value).value_or(0);
      if (share == 0) return;
      if (!steps()) return lose(setting, "set lr_scheduler.warmup_steps to a number of steps");
      return set(setting, key.ours, format("{}", std::llround(std::ceil(share * *steps()))));
    }
    case ForeignRule::min_lr: {
      const auto peak = number_of(foreign({"lr", "learning_rate", "optimizer.lr"}));
      if (!peak || *peak <= 0)
        return lose(setting, "set lr_scheduler.min_lr_factor to the fraction of the peak rate");
      return set(setting, key.ours, toml_float(number_of(&value).value_or(0) / *peak));
    }
    case ForeignRule::decay:
      return set_decay(setting);
    case ForeignRule::async:
      return set(setting, key.ours, is_off(value) ? "false" : "true");
    case ForeignRule::recompute:
      return set_recompute(setting);
    case ForeignRule::preset: {
      const ConfigValue* flavor = foreign({"model.flavor"});
      const std::string name = value.text + (flavor != nullptr ? "-" + lower_text(*flavor) : "");
      if (find_preset(name) == nullptr)
        return lose(setting, format("there is no preset {}; set the fields of [model]", name));
      return set(setting, key.ours, name);
    }
    case ForeignRule::strategy:
      strategies_.emplace_back(setting, key);
      return;
    case ForeignRule::by_hand:
      if (!is_off(value)) lose(setting, foreign_hint(setting.name));
      return;
    case ForeignRule::ignore:
      return;
  }
}

void Conversion::set_accumulated(const Setting& setting) {
  const auto rows = number_of(foreign({"per_device_train_batch_size", "micro_batch_size"})).value_or(8);
  const auto micro_batches = number_of(&setting.value).value_or(1);
  if (micro_batches <= 1) return;
  set(setting, "training.global_batch_size", format("{}", std::llround(rows * micro_batches)));
  lose(setting, "training.global_batch_size is for one rank; multiply it by the number of ranks");
}

void Conversion::set_recompute(const Setting& setting) {
  if (lower_text(setting.value) != "selective")
    return set(setting, "activation_checkpoint.mode", toml_value(setting.value));
  const ConfigValue* option = foreign({"activation_checkpoint.selective_ac_option"});
  const std::string every_n = option == nullptr            ? "2"
                              : option->kind == Kind::text ? option->text
                                                           : toml_value(*option);
  if (every_n == "op")
    return lose(setting, "not available yet for single operations; mode \"regions\" is similar");
  set(setting, "activation_checkpoint.mode", "every_n");
  set(setting, "activation_checkpoint.every_n", every_n);
}

void Conversion::set_decay(const Setting& setting) {
  const std::string name = lower_text(setting.value);
  for (const std::string_view same : {"linear", "cosine", "sqrt", "polynomial", "inverse_sqrt"})
    if (name == same) return set(setting, "lr_scheduler.decay_type", name);
  if (name == "constant" || name == "constant_with_warmup")
    return set(setting, "lr_scheduler.decay_type", "constant");
  if (name == "cosine_with_restarts") return set(setting, "lr_scheduler.decay_type", "cosine");
  lose(setting, "lr_scheduler.decay_type must be linear, sqrt, cosine, polynomial, inverse_sqrt or constant");
}

void Conversion::set_strategy(const Setting& setting, const ForeignKey& key) {
  if (is_off(setting.value)) return set(setting, key.ours, key.ours == "checkpoint.enable" ? "false" : "0");
  const bool by_steps = setting.value.kind == Kind::boolean || lower_text(setting.value) == "steps";
  if (!by_steps) lose(setting, "only \"steps\" and \"no\" are available");
}

void Conversion::set_sources(const Setting& setting, std::string_view ours) {
  const ConfigValue& value = setting.value;
  std::vector<std::string> tables;
  const auto add = [&](const ConfigValue& path) {
    tables.push_back(format("{{ path = {} }}", toml_value(path)));
  };
  if (value.kind == Kind::list) {
    std::for_each(value.list.begin(), value.list.end(), add);
  } else {
    add(value);
  }
  if (!is_off(value)) set(setting, ours, format("[{}]", join(tables, ", ")));
}

/// LLaMA-Factory's names, a list or with commas between them, which stand in <dataset_dir>/dataset_info.json.
void Conversion::set_datasets(const Setting& setting, std::string_view ours) {
  const ConfigValue* folder = foreign({"dataset_dir"});
  const std::string path =
      (folder != nullptr && !folder->text.empty() ? folder->text : "data") + "/dataset_info.json";
  std::string_view loss_on = "assistant";
  if (is_true(foreign({"mask_history"}))) loss_on = "last";
  if (is_true(foreign({"train_on_prompt"}))) loss_on = "all";
  std::vector<std::string> tables;
  for (const std::string& name : names_in(setting.value)) {
    std::string table = format("path = {}, dataset = {}", toml_string(path), toml_string(name));
    if (loss_on != "assistant") table += format(", loss_on = \"{}\"", loss_on);
    tables.push_back(format("{{ {} }}", table));
  }
  if (!tables.empty()) set(setting, ours, format("[{}]", join(tables, ", ")));
}

/// Fine-tuning gives each sample a row of its own, unless packing is on, and cuts long ones in proportion.
void Conversion::set_stage(const Setting& setting) {
  const std::string name = lower_text(setting.value);
  if (name == "pt") return;
  if (name != "sft") return lose(setting, foreign_hint(setting.name));
  if (foreign({"packing", "neat_packing"}) == nullptr) set(setting, "data.packing", "none");
  set(setting, "data.too_long", "proportional");
}

void Conversion::set_packing(const Setting& setting, std::string_view ours) {
  if (setting.value.kind == Kind::text) return set(setting, ours, toml_value(setting.value));
  const ConfigValue* stage = foreign({"stage"});
  const bool is_pretraining = stage != nullptr && lower_text(*stage) == "pt";
  if (is_true(&setting.value)) return set(setting, ours, is_pretraining ? "concat" : "best_fit");
  if (!is_true(foreign({"neat_packing"}))) set(setting, ours, "none");
}

/// The fields that were set, as TOML. Errors of their combination are added to what is lost.
std::string Conversion::written() {
  std::string out;
  const auto add_fields = [&](const TableSchema& schema, void* owner, const std::string& section) {
    std::string lines;
    for (const Field& field : schema.fields()) {
      if (written_.contains(dotted(section, field.name)))
        lines += format("{} = {}\n", field.name, toml_value(field, field.slot(owner)));
    }
    if (!lines.empty() && !section.empty()) lines = format("\n[{}]\n{}", section, lines);
    out += lines;
  };
  add_fields(config_schema(), &loaded_.config, "");
  for (const Field& field : config_schema().fields()) {
    if (field.type != FieldType::table) continue;
    add_fields(*field.table, std::get<TableSlot>(field.slot(&loaded_.config)).object, field.name);
  }
  try {
    parse_config(out, "the result");
  } catch (const UsageError& refusal) {
    converted_.lost.emplace_back(refusal.what());
  }
  return out;
}

}  // namespace

ConvertedConfig convert_config(std::string_view text, const std::string& name) {
  if (name.ends_with(".json")) return Conversion(parse_config_json(text, name)).run();
  if (name.ends_with(".yaml") || name.ends_with(".yml"))
    return Conversion(parse_config_yaml(text, name)).run();
  try {
    return Conversion(parse_toml(text)).run();
  } catch (const TomlError& error) {
    throw FormatError(format("{}:{}:{}: not valid TOML: {}", name, error.position().line,
                             error.position().column, error.what()));
  }
}

}  // namespace stepforge
