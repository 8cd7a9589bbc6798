// SPDX-License-Identifier: Apache-2.0
#include "stepforge/config/foreign_conversion.h"

#include <algorithm>
#include <array>
#include <functional>
#include <sstream>
#include <utility>

#include "stepforge/base/error_list.h"
#include "stepforge/base/format.h"
#include "stepforge/config/apply.h"
#include "stepforge/config/presets.h"
#include "stepforge/config/schema.h"
#include "stepforge/config/toml_text.h"

namespace stepforge {

namespace {

using Kind = ConfigValue::Kind;
using Synonyms = std::pair<std::string_view, std::string_view>;

/// Values that mean "off" for every switch.
constexpr std::string_view kOffValues = "|no|none|null|disabled|disable|off|false|";

constexpr auto kOptimizers = std::to_array<Synonyms>({
    {"adamw", "adamw"},
    {"adam", "adamw"},  // Megatron's and apex' is AdamW
    {"adamw_hf", "adamw"},
    {"adamw_torch", "adamw"},
    {"adamw_torch_fused", "adamw"},
    {"adamw_torch_xla", "adamw"},
    {"adamw_apex_fused", "adamw"},
    {"fused_adamw", "adamw"},
    {"paged_adamw", "adamw"},
    {"paged_adamw_32bit", "adamw"},
    {"torch.optim.adamw", "adamw"},
    {"adamw_anyprecision", "adamw_bf16"},
    {"anyprecision_adamw", "adamw_bf16"},
    {"adamw_8bit", "adamw_8bit"},
    {"adamw_bnb_8bit", "adamw_8bit"},
    {"adamw_torch_8bit", "adamw_8bit"},
    {"paged_adamw_8bit", "adamw_8bit"},
    {"bitsandbytes.optim.adamw8bit", "adamw_8bit"},
    {"lion", "lion"},
    {"lion_32bit", "lion"},
    {"paged_lion_32bit", "lion"},
    {"sgd", "sgd"},
    {"torch.optim.sgd", "sgd"},
    {"muon", "muon"},
});

/// Our fields that have an effect only with another one; files often set them alone.
struct Reader {
  std::string_view field;
  bool (*is_read)(const Config& config);
  std::string_view why;
};

bool saves(const Config& config) {
  return config.checkpoint.enable;
}

bool validates(const Config& config) {
  return config.validation.freq > 0;
}

bool decays(const Config& config) {
  return config.lr_scheduler.decay_type != "constant";
}

constexpr auto kReaders = std::to_array<Reader>({
    {"checkpoint.interval", saves, "no checkpoints are saved"},
    {"checkpoint.keep_latest_k", saves, "no checkpoints are saved"},
    {"checkpoint.folder", saves, "no checkpoints are saved"},
    {"checkpoint.async", saves, "no checkpoints are saved"},
    {"checkpoint.last_save_in_hf", saves, "no checkpoints are saved"},
    {"checkpoint.export_dtype", [](const Config& config) { return config.checkpoint.last_save_in_hf; },
     "nothing is exported"},
    {"validation.steps", validates, "validation is off"},
    {"checkpoint.keep_best", [](const Config& config) { return saves(config) && validates(config); },
     "validation is off, or no checkpoints are saved"},
    {"training.early_stopping.patience", validates, "validation is off"},
    {"lr_scheduler.min_lr_factor", decays, "the rate is constant"},
    {"lr_scheduler.total_steps", decays, "the rate is constant"},
    {"lr_scheduler.cycles", [](const Config& config) { return config.lr_scheduler.decay_type == "cosine"; },
     "the schedule is not cosine"},
    {"lr_scheduler.power",
     [](const Config& config) { return config.lr_scheduler.decay_type == "polynomial"; },
     "the schedule is not polynomial"},
    {"activation_checkpoint.every_n",
     [](const Config& config) { return config.activation_checkpoint.mode == RecomputeMode::every_n; },
     "the mode is not every_n"},
    {"parallelism.enable_sequence_parallel",
     [](const Config& config) { return config.parallelism.tensor_parallel_degree > 1; },
     "there is no tensor parallelism"},
    {"parallelism.enable_async_tensor_parallel",
     [](const Config& config) { return config.parallelism.tensor_parallel_degree > 1; },
     "there is no tensor parallelism"},
    {"parallelism.disable_loss_parallel",
     [](const Config& config) { return config.parallelism.tensor_parallel_degree > 1; },
     "there is no tensor parallelism"},
    {"parallelism.context_parallel_method",
     [](const Config& config) { return config.parallelism.context_parallel_degree > 1; },
     "there is no context parallelism"},
    {"parallelism.context_parallel_load_balance",
     [](const Config& config) { return config.parallelism.context_parallel_degree > 1; },
     "there is no context parallelism"},
    {"parallelism.expert_parallel_dispatcher",
     [](const Config& config) { return config.parallelism.expert_parallel_degree > 1; },
     "there is no expert parallelism"},
    {"parallelism.expert_tensor_parallel_degree",
     [](const Config& config) {
       return config.parallelism.expert_parallel_degree > 1 ||
              config.parallelism.expert_tensor_parallel_degree > 1;
     },
     "there is no expert parallelism"},
    {"parallelism.pipeline_parallel_schedule",
     [](const Config& config) { return config.parallelism.pipeline_parallel_degree > 1; },
     "there is no pipeline"},
    {"parallelism.pipeline_parallel_microbatch_size",
     [](const Config& config) { return config.parallelism.pipeline_parallel_degree > 1; },
     "there is no pipeline"},
    {"parallelism.pipeline_parallel_layers_per_stage",
     [](const Config& config) { return config.parallelism.pipeline_parallel_degree > 1; },
     "there is no pipeline"},
    {"optimizer.momentum",
     [](const Config& config) { return config.optimizer.name == "sgd" || config.optimizer.name == "muon"; },
     "only sgd and muon have it"},
    {"optimizer.nesterov",
     [](const Config& config) { return config.optimizer.name == "sgd" || config.optimizer.name == "muon"; },
     "only sgd and muon have it"},
    {"optimizer.muon_iterations", [](const Config& config) { return config.optimizer.name == "muon"; },
     "only muon has it"},
    {"optimizer.muon_scale", [](const Config& config) { return config.optimizer.name == "muon"; },
     "only muon has it"},
});

void flatten(const ConfigValue& table, const std::string& path, std::vector<ForeignSetting>& settings) {
  for (const ConfigEntry& entry : table.table) {
    const std::string name = dotted(path, entry.key);
    if (entry.value.kind == Kind::table && !entry.value.table.empty()) {
      flatten(entry.value, name, settings);
    } else {
      settings.push_back({name, name, entry.value});
    }
  }
}

bool has_no_value(const ConfigValue& value) {
  return value.kind == Kind::text && value.text.empty();
}

}  // namespace

std::vector<ForeignSetting> foreign_settings(const ConfigValue& table) {
  std::vector<ForeignSetting> settings;
  flatten(table, "", settings);
  return settings;
}

std::optional<double> number_of(const ConfigValue* value) {
  if (value == nullptr) return std::nullopt;
  if (value->kind == Kind::integer) return static_cast<double>(value->integer);
  if (value->kind == Kind::number) return value->number;
  return std::nullopt;
}

std::string lower_text(const ConfigValue& value) {
  std::string text = value.text;
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

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

bool is_off(const ConfigValue& value, std::string_view more) {
  switch (value.kind) {
    case Kind::boolean:
      if (!value.boolean) return true;
      break;
    case Kind::list:
      return value.list.empty();
    case Kind::table:
      return value.table.empty();
    case Kind::text:
      if (value.text.empty() || kOffValues.find("|" + lower_text(value) + "|") != std::string_view::npos)
        return true;
      break;
    default:
      break;
  }
  const std::optional<double> number = number_of(&value);
  std::istringstream words{std::string(more)};
  for (std::string word; std::getline(words, word, '|');) {
    if (number ? number_text(*number) == word
               : (value.kind == Kind::boolean ? std::string(value.boolean ? "true" : "false")
                                              : lower_text(value)) == word)
      return true;
  }
  return false;
}

ForeignConversion::ForeignConversion(const ForeignTrainer& trainer, std::vector<ForeignSetting> settings,
                                     int64_t ranks)
    : trainer_(trainer), settings_(std::move(settings)), ranks_(ranks) {
  for (const ForeignSetting& setting : settings_) outcomes_.emplace(setting.key, Outcome::unseen);
}

ConvertedConfig ForeignConversion::run() {
  for (const ForeignSetting& setting : settings_) translate(setting);
  if (trainer_.finish != nullptr) trainer_.finish(*this);
  drop_tokenizer_of_model();
  set_defaults();
  require_validation_data();
  drop_unread();
  account();
  converted_.trainer = trainer_.title;
  converted_.toml = written();
  return std::move(converted_);
}

ForeignSetting* ForeignConversion::setting_of(std::string_view key) {
  const auto found = std::ranges::find(settings_, key, &ForeignSetting::key);
  return found == settings_.end() ? nullptr : &*found;
}

void ForeignConversion::mark(std::string_view key, Outcome outcome) {
  const auto found = outcomes_.find(key);
  if (found != outcomes_.end()) found->second = outcome;
}

std::string ForeignConversion::shown(std::string_view key) const {
  const auto found = std::ranges::find(settings_, key, &ForeignSetting::key);
  return found == settings_.end() ? std::string(key)
                                  : format("{} = {}", found->name, shown_value(found->value));
}

bool ForeignConversion::has(std::string_view key) const {
  const auto found = std::ranges::find(settings_, key, &ForeignSetting::key);
  return found != settings_.end() && !has_no_value(found->value);
}

const ConfigValue* ForeignConversion::find(std::string_view key) {
  const ForeignSetting* setting = setting_of(key);
  if (setting == nullptr || has_no_value(setting->value)) return nullptr;
  if (outcomes_.find(key)->second == Outcome::unseen) mark(key, Outcome::translated);
  return &setting->value;
}

std::optional<double> ForeignConversion::number(std::string_view key) {
  return number_of(find(key));
}

std::string ForeignConversion::text(std::string_view key) {
  const ConfigValue* value = find(key);
  return value == nullptr ? "" : value->text;
}

bool ForeignConversion::is_true(std::string_view key) {
  const ConfigValue* value = find(key);
  return value != nullptr && value->kind == Kind::boolean && value->boolean;
}

int64_t ForeignConversion::data_ranks() const {
  const ParallelismConfig& layout = config().parallelism;
  const int64_t others =
      layout.tensor_parallel_degree * layout.pipeline_parallel_degree * layout.context_parallel_degree;
  return std::max<int64_t>(1, ranks_ / others);
}

void ForeignConversion::set(std::string_view key, std::string_view ours, const std::string& value,
                            std::string_view comment) {
  constexpr std::string_view kPlace = "file: ";
  ErrorList errors = ErrorList::with_places("the configuration");
  RefusedFields refused;
  LayerApplier(loaded_, errors, refused, {"file"}).apply(Override{std::string(ours), value});
  if (errors.empty()) {
    mark(key, Outcome::translated);
    written_[std::string(ours)] = {value, std::string(comment), std::string(key)};
    return;
  }
  std::string why = errors.message();
  for (size_t at = 0; (at = why.find(kPlace, at)) != std::string::npos;) why.erase(at, kPlace.size());
  // The key may have our name; then the value is shown once.
  const std::string start = shown(key) + ": ";
  lose(key, why.starts_with(start) ? std::string_view(why).substr(start.size()) : std::string_view(why));
}

void ForeignConversion::set_default(std::string_view ours, std::string_view value) {
  if (!is_set(ours)) set("", ours, std::string(value), format("{}'s default", trainer_.title));
}

void ForeignConversion::unset(std::string_view ours) {
  const auto found = written_.find(ours);
  if (found == written_.end()) return;
  written_.erase(found);
  Config defaults;
  const FieldRef field = find_field(config_schema(), &defaults, ours);
  set("", ours, toml_value(*field.field, slot_of(field)));
  written_.erase(std::string(ours));
}

void ForeignConversion::set_sources(std::string_view key, std::string_view ours,
                                    const std::vector<std::string>& sources, bool are_joined) {
  if (sources.empty()) return lose(key, "no data set is named");
  std::vector<std::string> tables;
  for (const std::string& source : sources) tables.push_back(format("{{{}}}", source));
  const std::string list = format("[{}]", join(tables, ", "));
  const bool is_group = are_joined && sources.size() > 1 && ours == "data.sources";
  set(key, ours, is_group ? format("[{{combine = \"concat\", sources = {}}}]", list) : list);
}

void ForeignConversion::lose(std::string_view key, std::string_view why) {
  mark(key, Outcome::lost);
  converted_.lost.push_back(format("{}: {}", shown(key), why));
}

void ForeignConversion::refuse(std::string_view key, std::string_view why) {
  mark(key, Outcome::refused);
  converted_.refused.push_back(format("{}: {}", shown(key), why));
}

void ForeignConversion::need_nothing(std::string_view key, std::string_view why) {
  mark(key, Outcome::needless);
  converted_.needless.push_back(format("{}: {}", shown(key), why));
}

void ForeignConversion::translate(const ForeignSetting& setting) {
  if (has_no_value(setting.value)) return mark(setting.key, Outcome::off);
  if (const ForeignKey* key = trainer_.find(setting.key)) return translate_by_rule(setting, *key);
  Config scratch;
  if (trainer_.has_our_names && find_field(config_schema(), &scratch, setting.key).field != nullptr)
    return set(setting.key, setting.key, toml_value(setting.value));
  lose(setting.key, format("unknown key of {}", trainer_.title));
}

void ForeignConversion::translate_by_rule(const ForeignSetting& setting, const ForeignKey& key) {
  const ConfigValue& value = setting.value;
  switch (key.rule) {
    case ForeignRule::copy:
      return set(setting.key, key.ours, toml_value(value));
    case ForeignRule::positive:
      if (number_of(&value).value_or(1) > 0) return set(setting.key, key.ours, toml_value(value));
      return mark(setting.key, Outcome::off);
    case ForeignRule::when_true:
      if (is_off(value, "")) return mark(setting.key, Outcome::off);
      return set(setting.key, key.ours, std::string(key.fixed));
    case ForeignRule::negate:
      return set(setting.key, key.ours, is_off(value, "") ? "true" : "false");
    case ForeignRule::decay:
      return set_decay(setting);
    case ForeignRule::optimizer:
      return set_optimizer(setting);
    case ForeignRule::model:
      return set(setting.key, "model.from", toml_value(value), "a folder on this machine: download it first");
    case ForeignRule::tokenizer:
      set(setting.key, "tokenizer.type", "\"hf\"");
      return set(setting.key, "tokenizer.path", toml_value(value));
    case ForeignRule::lost:
      if (is_off(value, key.fixed)) return mark(setting.key, Outcome::off);
      return lose(setting.key, foreign_remedy(key));
    case ForeignRule::refused:
      if (is_off(value, key.fixed)) return mark(setting.key, Outcome::off);
      return refuse(setting.key, key.note);
    case ForeignRule::needless:
      return need_nothing(setting.key, key.note);
    case ForeignRule::read:
      return;
  }
}

void ForeignConversion::set_decay(const ForeignSetting& setting) {
  std::string name = lower_text(setting.value);
  std::ranges::replace(name, '-', '_');
  if (name == "inverse_square_root") name = "inverse_sqrt";
  if (name == "cosine_with_restarts" || name == "cosine_with_min_lr") name = "cosine";
  const bool without_warmup = name == "constant" && trainer_.find("warmup_steps") != nullptr;
  if (name == "constant_with_warmup") name = "constant";
  for (const std::string_view same : {"linear", "cosine", "sqrt", "polynomial", "inverse_sqrt", "constant"}) {
    if (name != same) continue;
    set(setting.key, "lr_scheduler.decay_type", toml_string(name));
    // In transformers only constant_with_warmup has a warm-up.
    if (without_warmup) set("", "lr_scheduler.warmup_steps", "0", "its constant schedule has no warm-up");
    return;
  }
  lose(setting.key,
       "lr_scheduler.decay_type is linear, sqrt, cosine, polynomial, inverse_sqrt or constant; with "
       "lr_scheduler.decay_ratio it is a warmup-stable-decay schedule");
}

void ForeignConversion::set_optimizer(const ForeignSetting& setting) {
  const std::string name = lower_text(setting.value);
  const auto* const found = std::ranges::find(kOptimizers, std::string_view(name), &Synonyms::first);
  if (found == kOptimizers.end()) {
    const auto& known = config_schema().find("optimizer")->table->find("name")->rules.choices;
    return lose(setting.key, format("optimizer.name is one of {}; adamw is used",
                                    join(std::vector<std::string>(known.begin(), known.end()), ", ")));
  }
  set(setting.key, "optimizer.name", toml_string(found->second));
}

/// model.from brings the tokenizer of its folder.
void ForeignConversion::drop_tokenizer_of_model() {
  if (!is_set("model.from") || config().tokenizer.path != config().model.from) return;
  for (const ForeignSetting& setting : settings_) {
    const ForeignKey* key = trainer_.find(setting.key);
    if (key != nullptr && key->rule == ForeignRule::tokenizer && setting.value.text == config().model.from)
      need_nothing(setting.key, "model.from brings the tokenizer");
  }
  unset("tokenizer.path");
  unset("tokenizer.type");
}

/// Defaults that equal ours are not written, unless model.from sets others.
void ForeignConversion::set_defaults() {
  const bool from_model = !config().model.from.empty();
  if (is_set("preset"))
    base_ = parse_config(format("preset = {}", toml_string(config().preset)), "the preset");
  const bool has_betas = config().optimizer.name != "sgd";
  for (const ForeignDefault& theirs : trainer_.defaults) {
    if (is_set(theirs.ours)) continue;
    if (theirs.ours == "lr_scheduler.warmup_steps" && is_set("lr_scheduler.warmup_ratio")) continue;
    if (!has_betas && (theirs.ours.starts_with("optimizer.beta") || theirs.ours == "optimizer.eps")) continue;
    const FieldRef field = find_field(config_schema(), &base_.config, theirs.ours);
    const std::string ours = toml_value(*field.field, slot_of(field));
    set_default(theirs.ours, theirs.value);
    const FieldRef now = find_field(config_schema(), &loaded_.config, theirs.ours);
    const bool of_model =
        from_model && (theirs.ours == "optimizer.lr" || theirs.ours == "lr_scheduler.warmup_steps");
    if (!of_model && toml_value(*now.field, slot_of(now)) == ours) written_.erase(std::string(theirs.ours));
  }
}

void ForeignConversion::drop_unread() {
  for (const Reader& reader : kReaders) {
    const auto found = written_.find(reader.field);
    if (found == written_.end() || reader.is_read(config())) continue;
    const std::string key = found->second.key;
    unset(reader.field);
    if (outcomes_.contains(key) && outcomes_.find(key)->second == Outcome::translated)
      need_nothing(key, reader.why);
  }
}

/// Validation without data would be refused.
void ForeignConversion::require_validation_data() {
  const Config& ours = config();
  if (ours.validation.freq == 0 || !ours.data.validation.empty() || ours.data.validation_fraction > 0 ||
      !ours.data.split.empty())
    return;
  unset("validation.freq");
  unset("validation.steps");
  converted_.lost.emplace_back(
      "validation.freq: the file names no validation data that could be translated; set "
      "data.validation_fraction or data.validation with it");
}

void ForeignConversion::account() {
  for (const ForeignSetting& setting : settings_) {
    Outcome& outcome = outcomes_.find(setting.key)->second;
    if (outcome == Outcome::unseen) {
      const ForeignKey* key = trainer_.find(setting.key);
      lose(setting.key, key != nullptr && !foreign_remedy(*key).empty()
                            ? foreign_remedy(*key)
                            : "it has no effect with the other settings");
    }
    if (outcome == Outcome::off) converted_.off.push_back(setting.name);
    if (outcome == Outcome::translated) ++converted_.n_translated;
    if (outcome == Outcome::lost) ++converted_.n_lost;
    if (outcome == Outcome::refused) ++converted_.n_refused;
    if (outcome == Outcome::needless) ++converted_.n_needless;
  }
  converted_.n_settings = settings_.size();
}

/// The fields that were set, as TOML. Tables in lists have only the fields that were given.
std::string ForeignConversion::written() const {
  std::string out;
  Config values = config();
  const std::function<std::string(const TableSchema&, void*, const std::string&, const std::string&)>
      lines_of =
          [&](const TableSchema& schema, void* owner, const std::string& path, const std::string& inner) {
            std::string lines;
            for (const Field& field : schema.fields()) {
              const std::string name = dotted(inner, field.name);
              if (field.type == FieldType::table && !path.empty())
                lines += lines_of(*field.table, std::get<TableSlot>(field.slot(owner)).object, path, name);
              const auto found = written_.find(dotted(path, name));
              if (found == written_.end()) continue;
              const bool is_text = field.type == FieldType::tables;
              const std::string& comment = found->second.comment;
              lines += format("{} = {}{}\n", name,
                              is_text ? found->second.value : toml_value(field, field.slot(owner)),
                              comment.empty() ? "" : "  # " + comment);
            }
            return lines;
          };
  out += lines_of(config_schema(), &values, "", "");
  for (const Field& field : config_schema().fields()) {
    if (field.type != FieldType::table) continue;
    const std::string lines =
        lines_of(*field.table, std::get<TableSlot>(field.slot(&values)).object, field.name, "");
    if (!lines.empty()) out += format("\n[{}]\n{}", field.name, lines);
  }
  return out;
}

}  // namespace stepforge
