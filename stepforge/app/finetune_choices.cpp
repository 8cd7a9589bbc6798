// SPDX-License-Identifier: Apache-2.0
#include "stepforge/app/finetune_choices.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "stepforge/app/finetune_data.h"
#include "stepforge/base/device_name.h"
#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/machine.h"
#include "stepforge/config/apply.h"
#include "stepforge/config/config_section.h"
#include "stepforge/config/data_sources.h"
#include "stepforge/config/toml_text.h"
#include "stepforge/data/data_plan.h"
#include "stepforge/dataset/tokenize.h"
#include "stepforge/plan/job_data.h"
#include "stepforge/plan/known_model.h"
#include "stepforge/plan/step_plan.h"
#include "stepforge/plan/unread_options.h"
#include "stepforge/text/builtin_templates.h"
#include "stepforge/text/chat_template.h"

namespace stepforge {

namespace {

/// Chosen though the user may set fields of its entry, such as data.sources.0.field.
constexpr const char* kSources = "data.sources";

constexpr int64_t kStudied = 20000;      ///< documents whose lengths are measured
constexpr int64_t kLengthUnit = 64;      ///< rows are a multiple of it
constexpr int64_t kShortestRows = 256;   ///< no shorter rows for lack of memory
constexpr int64_t kTextRows = 1024;      ///< of texts, which are cut anywhere
constexpr int64_t kLeastTextRows = 60;   ///< so many of them, if they can be shorter
constexpr int64_t kStepRows = 16;        ///< of a step, if there is enough data
constexpr int64_t kMicroRows = 8;        ///< of a micro-batch at most
constexpr int64_t kLeastSteps = 60;      ///< of a run
constexpr int64_t kValidations = 10;     ///< of a run
constexpr int64_t kFullValidations = 5;  ///< of a run on all weights, whose checkpoints are large
constexpr int64_t kLeastHeldOut = 16;    ///< documents
constexpr int64_t kMostHeldOut = 1000;   ///< documents
constexpr double kHeldOut = 0.05;        ///< of the documents, within these limits
constexpr int64_t kSampleTokens = 128;
constexpr double kMemoryShare =
    0.9;  ///< of the free memory: validation, samples and the program need some too

int64_t round_up(int64_t value, int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

/// The largest power of two that is at most `value`, which is positive.
int64_t power_below(int64_t value) {
  int64_t power = 1;
  while (power * 2 <= value) power *= 2;
  return power;
}

std::string percent(double share) {
  return format("{:.3g} %", 100 * share);
}

class Chooser {
 public:
  Chooser(const FinetuneOptions& options, const MemoryBudget& budget,
          const std::shared_ptr<Registry>& registry, Logger& log)
      : options_(options), budget_(budget), registry_(registry), log_(log) {
    own_ = read_overrides(options.overrides);
    for (const auto& [key, argument] : {std::pair("model.from", "MODEL"), std::pair("data.sources", "DATA")})
      if (std::ranges::count(own_, key, &Override::name) > 0)
        throw UsageError(format("{}: finetune takes it as {}; leave the field out", key, argument));
  }

  FinetunePlan plan() {
    choose("model.from", toml_string(options_.model), "");
    choose("run_dir", toml_string(run_folder()), "the name of the model");
    choose_sources();
    choose_for_now();
    choose_loss();
    base_ = load().config;
    tokenizer_ = reading_input([&] { return known_tokenizer(base_); });
    if (tokenizer_ == nullptr)
      throw UsageError(
          format("{} has no tokenizer: copy tokenizer.json into it, or set tokenizer.path", options_.model));
    choose_method();
    choose_numbers();
    choose_template();
    study();
    choose_recipe();
    choose_rows();
    FinetunePlan plan{.loaded = load(ConfigUse::train)};
    refuse_unread_options(plan.loaded);
    check_vocabulary(plan.loaded, tokenizer_->vocab_size());
    plan.choices = choices_;
    plan.warnings = warnings_;
    plan.memory = format("the step needs {} of the {} that {}", human_bytes(needed_),
                         human_bytes(budget_.bytes), budget_.source);
    plan.has_template = has_template(plan.loaded.config);
    return plan;
  }

 private:
  /// Whether the user has set the field, a part of it, or the table around it.
  bool is_own(const std::string& key) const {
    return std::ranges::any_of(own_, [&](const Override& own) {
      return own.name == key || own.name.starts_with(key + ".") || key.starts_with(own.name + ".");
    });
  }

  void choose(const std::string& key, std::string value, std::string reason) {
    if (key != kSources && is_own(key)) return;
    const auto old = std::ranges::find(choices_, key, &FinetuneChoice::key);
    if (old == choices_.end()) {
      choices_.push_back({key, std::move(value), std::move(reason)});
    } else {
      *old = {key, std::move(value), std::move(reason)};
    }
  }

  void forget(const std::string& key) {
    std::erase_if(choices_, [&](const FinetuneChoice& choice) { return choice.key == key; });
  }

  LoadedConfig load(ConfigUse use = ConfigUse::inspect) const {
    std::vector<std::string> settings;
    for (const FinetuneChoice& choice : choices_) settings.push_back(choice.key + "=" + choice.value);
    settings.insert(settings.end(), options_.overrides.begin(), options_.overrides.end());
    return parse_config("", "", settings, use, settings_from_model, registry_);
  }

  std::string run_folder() const {
    std::filesystem::path model = std::filesystem::absolute(options_.model).lexically_normal();
    if (!model.has_filename()) model = model.parent_path();
    std::string name = model.filename().string();
    if (model_kind(model) == ModelKind::checkpoint)
      name = model.parent_path().parent_path().filename().string() + "-" + name;
    return "runs/finetune-" + name;
  }

  /// What fields of the user may need before it is chosen.
  void choose_for_now() {
    if (!options_.full && !is_own("adapter.from"))
      choose("adapter.type", "\"lora\"", "trains a small adapter, not the model; --full trains all weights");
    choose("training.local_batch_size", "1", "");
    const auto own = std::ranges::find(own_, "training.local_batch_size", &Override::name);
    choose("training.global_batch_size", own == own_.end() ? std::to_string(kStepRows) : own->text, "");
    choose("validation.freq", "1", "");
  }

  void choose_method() {
    const Config config = load().config;
    if (!config.adapter.enabled()) return;
    if (!is_own("adapter.from")) {
      choose("adapter.rank", "16", "usual; a higher rank learns more and takes more memory");
      choose("adapter.alpha", "32.0", "twice the rank");
    }
    // Frozen weights lose nothing in the type in which the folder has them; checkpoints have fp32.
    if (model_kind(options_.model) == ModelKind::hf_folder && base_.checkpoint.export_dtype == DType::bf16)
      choose("model.frozen_dtype", "\"bf16\"", "the type of the weights in the folder, so it loses nothing");
  }

  void choose_numbers() {
    const std::optional<DeviceName> device = parse_device_name(base_.training.device);
    const bool on_gpu = !budget_.with_host;
    const bool fast = on_gpu || has_bf16_products(read_machine_facts().cpu);
    if (device && fast)
      choose("precision.compute", "\"bf16\"", on_gpu ? "fast on a GPU" : "this processor multiplies bf16");
  }

  void choose_sources() {
    FoundFormat found;
    if (!is_own("data.sources.0.format") && !is_own("data.sources.0.field"))
      found = reading_input([&] { return find_format(options_.data); });
    takes_no_template_ = found.takes_no_template;
    choose(kSources, source_text(options_.data, found), found.because);
    if (!options_.validation.empty())
      choose(
          "data.validation",
          source_text(options_.validation, reading_input([&] { return find_format(options_.validation); })),
          "--validation");
    if (found.is_plain) choose("data.document", "\"paragraph\"", "parts of a text can be held out");
  }

  void choose_loss() {
    const Config config = load().config;
    const auto reads = [&](ChatLayout layout) {
      return reading_input([&] { return reads_layout(config.data, layout); });
    };
    if (reads(ChatLayout::unpaired_preference))
      return choose("preference.loss", "\"kto\"",
                    "the usual loss of judged answers; the model as it is is the reference");
    if (!reads(ChatLayout::preference)) return;
    if (config.model.scores())
      choose("preference.loss", "\"reward\"", "the model is a reward model");
    else
      choose("preference.loss", "\"dpo\"", "the usual loss of pairs; the model as it is is the reference");
  }

  void choose_template() {
    const Config config = load().config;
    if (needs_template(config) && !has_template(config)) {
      const BuiltinTemplate& fitting = fitting_template();
      choose("data.chat_template", toml_string(fitting.name),
             fitting.tokens.empty()
                 ? "the model has no chat template, and this one needs no tokens of its own"
                 : "the model has no chat template, and its tokenizer has the tokens of this one");
    }
  }

  /// Whether it has messages; prompts and completions may be plain texts.
  bool needs_template(const Config& config) const {
    return std::ranges::any_of(
        leaf_sources(kSources, config.data.sources), [this](const DataSourceAt& entry) {
          const DataFormat layout = entry.source->format;
          return layout == DataFormat::messages || layout == DataFormat::sharegpt ||
                 layout == DataFormat::alpaca || (layout >= DataFormat::preference && !takes_no_template_);
        });
  }

  static std::string source_text(const std::string& path, const FoundFormat& found) {
    const std::string format_key =
        found.layout ? format(", format = \"{}\"", chat_layout_name(*found.layout)) : "";
    return format("[{{ path = {}{} }}]", toml_string(path), format_key);
  }

  bool has_template(const Config& config) const {
    const RecordOptions records = data_plan(config, 0).records;
    return !records.chat_template.empty() || ChatTemplate::exists(records.tokenizer_folder);
  }

  /// One whose tokens the tokenizer has, or alpaca, which has none.
  const BuiltinTemplate& fitting_template() const {
    for (const BuiltinTemplate& known : builtin_templates()) {
      const bool fits = std::ranges::all_of(known.tokens, [&](std::string_view token) {
        return tokenizer_->encode(std::string(token)).size() == 1;
      });
      if (fits && !known.tokens.empty()) return known;
    }
    return *find_builtin_template("alpaca");
  }

  /// Lengths of the first source, and how much to hold out.
  void study() {
    const Config config = load().config;
    const DataPlan plan = data_plan(config, 0);
    const SourceSpec first = leaves_of(plan.sources).front();
    is_chat_ = holds_conversations(first);
    if (is_indexed(first))
      throw UsageError(
          format("{} holds token ids; finetune chooses by texts and conversations, and `train` reads "
                 "token ids",
                 first.path));
    RecordOptions records = record_options(plan, first);
    records.limit = {};
    study_ = reading_input([&] { return study_data(first.path, records, *tokenizer_, kStudied); });
    choose_validation(config);
    choose_sample(load().config);
  }

  void choose_validation(const Config& config) {
    if (!config.data.validation.empty()) return;
    const auto documents = static_cast<double>(study_.documents);
    if (study_.documents < 2) {
      warnings_.emplace_back(
          "one document cannot be divided: nothing is held out, so overfitting will not show");
      return;
    }
    double share = std::max(kHeldOut, static_cast<double>(kLeastHeldOut) / documents);
    share = std::min({share, 0.2, std::max(0.002, static_cast<double>(kMostHeldOut) / documents)});
    const double rounded = std::round(share * 1000) / 1000;
    choose("data.validation_fraction", number_text(rounded),
           format("about {} of {}{} documents", with_thousands(std::llround(rounded * documents)),
                  study_.is_whole ? "" : "about ", with_thousands(study_.documents)));
  }

  void choose_sample(const Config& config) {
    if (config.model.scores()) return;  // it writes no text
    const std::string question = question_of(config);
    if (question.empty() && !is_own("sampling.prompt")) return;
    choose("sampling.at_ends", "true", "an answer before the first step, and one after the last");
    choose("sampling.prompt", toml_string(question),
           options_.validation.empty() ? "the first question that is held out"
                                       : "the first question of --validation");
    choose("sampling.temperature", "0.0", "both answers are the likeliest ones");
    choose("sampling.max_tokens", std::to_string(kSampleTokens), "");
  }

  /// The first message of a user in the validation data; "" if there is none.
  std::string question_of(const Config& config) const {
    constexpr size_t kLongest = 1000;
    const bool listed = !config.data.validation.empty();
    if (!is_chat_ || (!listed && config.data.validation_fraction == 0)) return "";
    DataStudy other;
    if (listed) {
      const DataPlan plan = data_plan(config, 0);
      const SourceSpec first = leaves_of(plan.validation_sources).front();
      if (is_indexed(first) || !holds_conversations(first)) return "";
      other =
          reading_input([&] { return study_data(first.path, record_options(plan, first), *tokenizer_, 1); });
    }
    const ValidationSplit split{config.data.validation_fraction, static_cast<uint64_t>(config.data.seed)};
    for (const DataStudy::Question& question : listed ? other.questions : study_.questions)
      if ((listed || split.holds_out(question.hash)) && question.text.size() <= kLongest)
        return question.text;
    return "";
  }

  void choose_recipe() {
    const Config config = load().config;
    const bool lora = config.adapter.enabled();
    const bool pairs = config.preference.enabled();
    const std::string_view noun = noun_of(config.preference);
    if (config.training.steps == 0)
      choose("training.epochs", pairs ? "1" : "3", format("usual for {}", noun));
    const bool scores = config.model.scores();
    const std::string_view rate = scores  ? (lora ? "1e-4" : "1e-5")
                                  : pairs ? (lora ? "5e-6" : "5e-7")
                                          : (lora ? "2e-4" : "1e-5");
    choose("optimizer.lr", std::string(rate),
           format("usual for {}{}", lora ? "LoRA" : "all weights",
                  scores  ? std::string(" of a reward model")
                  : pairs ? format(" on {}", noun)
                          : ""));
    if (lora) choose("optimizer.weight_decay", "0.0", "usual for adapters");
    choose("lr_scheduler.warmup_ratio", "0.03", "");
    choose("lr_scheduler.decay_type", "\"cosine\"", "");
    choose("checkpoint.keep_latest_k", "2", "and the best one");
  }

  /// Length, batch, recomputation and what depends on the number of steps: the first that fits.
  void choose_rows() {
    const Config config = load().config;
    const int64_t longest = wanted_length(config);
    for (int64_t length = longest;; length = round_up(length / 2, kLengthUnit)) {
      set_length(length, longest);
      set_batch();
      if (fit_batch()) {
        if (length < longest)
          warnings_.push_back(
              format("rows of {} tokens do not fit into the memory: they have {}, and longer {}", longest,
                     length, config.preference.enabled() ? "answers are left out" : "documents are cut"));
        return;
      }
      if (is_own("training.seq_len") || length <= kShortestRows) refuse_memory();
    }
  }

  int64_t wanted_length(const Config& config) const {
    if (is_own("training.seq_len")) return config.training.seq_len;
    // Pairs that are longer are left out, conversations are cut.
    const int64_t wanted =
        is_chat_ ? round_up(study_.length_of(config.preference.enabled() ? 0.99 : 0.95), kLengthUnit)
                 : std::min(kTextRows, tokens() / kLeastTextRows / kLengthUnit * kLengthUnit);
    return std::min(std::max(wanted, kLengthUnit), config.model.max_position);
  }

  /// Of the first source, about.
  int64_t tokens() const {
    const int64_t studied = std::accumulate(study_.lengths.begin(), study_.lengths.end(), int64_t{0});
    return std::llround(static_cast<double>(studied) / static_cast<double>(study_.lengths.size()) *
                        static_cast<double>(study_.documents));
  }

  void set_length(int64_t length, int64_t longest) {
    const auto fitting = std::ranges::upper_bound(study_.lengths, length) - study_.lengths.begin();
    const double share = static_cast<double>(fitting) / static_cast<double>(study_.lengths.size());
    choose("training.seq_len", std::to_string(length),
           length < longest ? "as long as the memory allows"
           : is_chat_ ? format("{} of the {} are not longer (the longest has {} tokens)", percent(share),
                               noun_of(load().config.preference), with_thousands(study_.lengths.back()))
                      : "texts are cut into rows");
  }

  static std::string_view noun_of(const PreferenceConfig& preference) {
    if (preference.unpaired()) return "judged answers";
    return preference.enabled() ? "pairs" : "conversations";
  }

  /// Rows of a step, and what follows from their number.
  void set_batch() {
    choose_for_now();
    Config config = load().config;
    const int64_t rows = rows_of_epoch(config);
    const double epochs = static_cast<double>(std::max<int64_t>(1, config.training.epochs));
    const auto most =
        static_cast<int64_t>(static_cast<double>(rows) * epochs / static_cast<double>(kLeastSteps));
    int64_t step_rows = std::clamp<int64_t>(power_below(std::max<int64_t>(1, most)), 1, kStepRows);
    if (is_own("training.local_batch_size")) {
      const int64_t own = config.training.local_batch_size;
      step_rows = own * std::max<int64_t>(1, step_rows / own);
    }
    choose(
        "training.global_batch_size", std::to_string(step_rows),
        step_rows == kStepRows ? "usual" : format("so that {} rows make enough steps", with_thousands(rows)));
    config = load().config;
    const int64_t of_step = std::max<int64_t>(1, config.training.global_batch_size);
    const int64_t steps = config.training.steps > 0 ? config.training.steps
                                                    : (config.training.epochs * rows + of_step - 1) / of_step;
    set_intervals(config, std::max<int64_t>(1, steps));
  }

  void set_intervals(const Config& config, int64_t steps) {
    const bool validates = !config.data.validation.empty() || config.data.validation_fraction > 0;
    const int64_t times = config.adapter.enabled() ? kValidations : kFullValidations;
    const int64_t freq = std::max<int64_t>(1, steps / times);
    if (!validates) {
      forget("validation.freq");
    } else {
      choose("validation.freq", std::to_string(freq), format("{} times in {} steps", steps / freq, steps));
      if (load().config.validation.freq > 0)
        choose("checkpoint.keep_best", "true", "the step with the lowest validation loss");
    }
    choose("checkpoint.interval", std::to_string(validates ? 2 * freq : std::max<int64_t>(1, steps / 4)),
           validates ? "with every second validation" : "four times in the run");
    choose("metrics.log_freq", std::to_string(std::clamp<int64_t>(steps / 50, 1, 10)), "");
  }

  /// The rows of the training data, packed; tokenizes what is not in the cache.
  int64_t rows_of_epoch(const Config& config) {
    const auto progress = [&](const TokenizeProgress& at) {
      if (at.bytes_done < at.bytes_total || logged_) return;
      logged_ = true;
      log_.info("tokenized {} into {} tokens", human_bytes(at.bytes_total), with_thousands(at.tokens));
    };
    return reading_input([&] {
      check_sources(config, tokenizer_.get());
      const DataPlan plan = data_plan(config, planned_vocabulary(config, tokenizer_.get()));
      return open_data(plan, tokenizer_.get(), progress).train->rows_per_epoch();
    });
  }

  /// The largest micro-batch that fits, without recomputation if possible, and at last with frozen weights that are rounded.
  bool fit_batch() {
    if (fit_micro_batch()) return true;
    const Config config = load().config;
    if (!config.adapter.enabled() || config.model.frozen_dtype != FrozenDType::fp32 ||
        is_own("model.frozen_dtype"))
      return false;
    choose("model.frozen_dtype", "\"bf16\"", "fp32 does not fit");
    if (fit_micro_batch()) {
      warnings_.emplace_back("frozen weights are rounded to bf16, since fp32 does not fit into the memory");
      return true;
    }
    forget("model.frozen_dtype");
    return false;
  }

  bool fit_micro_batch() {
    for (const double kept : {1.0, 0.5, 0.0}) {
      if (kept < 1.0 && is_own("activation_checkpoint")) break;
      set_recomputation(kept);
      const int64_t of_step = std::max<int64_t>(1, load().config.training.global_batch_size);
      for (int64_t rows = power_below(std::min(kMicroRows, of_step)); rows >= 1; rows /= 2) {
        if (of_step % rows != 0) continue;
        choose("training.local_batch_size", std::to_string(rows),
               rows < of_step ? format("what fits into the memory; {} make a step", of_step / rows)
                              : "all rows of a step");
        if (fits()) return true;
        if (is_own("training.local_batch_size")) break;
      }
    }
    return false;
  }

  void set_recomputation(double kept) {
    forget("activation_checkpoint.mode");
    forget("activation_checkpoint.memory_budget");
    if (kept == 1.0) return;
    choose("activation_checkpoint.mode", kept > 0 ? "\"budget\"" : "\"full\"",
           "keeping all activations does not fit");
    if (kept > 0) choose("activation_checkpoint.memory_budget", number_text(kept), "");
  }

  /// By the account of the step program, as `plan` shows it.
  bool fits() {
    const Job job = plan_job(load().config);
    needed_ = needed_bytes(account(write_train_step(job)), budget_);
    least_ = std::min(least_, needed_);
    return static_cast<double>(needed_) <= kMemoryShare * static_cast<double>(budget_.bytes);
  }

  [[noreturn]] void refuse_memory() const {
    throw UsageError(format(
        "the step needs at least {}, and {} {}, of which a tenth is left for the rest; tried: micro-batches "
        "down to one row, recomputation, rows of {} tokens; {}take a smaller model, free memory, or set the "
        "fields that --help names",
        human_bytes(least_), human_bytes(budget_.bytes), budget_.source, load().config.training.seq_len,
        options_.full ? "train an adapter (without --full), " : ""));
  }

  const FinetuneOptions& options_;
  const MemoryBudget& budget_;
  std::shared_ptr<Registry> registry_;
  Logger& log_;
  std::vector<Override> own_;
  std::vector<FinetuneChoice> choices_;
  std::vector<std::string> warnings_;
  Config base_;
  std::unique_ptr<Tokenizer> tokenizer_;
  DataStudy study_;
  bool is_chat_ = false;
  bool takes_no_template_ = false;
  bool logged_ = false;
  int64_t needed_ = 0;
  int64_t least_ = std::numeric_limits<int64_t>::max();
};

/// The table of a list with the fields that are not as usual.
std::string short_table(const TableSchema& schema, void* object);

std::string short_value(const Field& field, const FieldSlot& slot) {
  if (field.type != FieldType::tables) return toml_value(field, slot);
  const auto& list = std::get<TableListSlot>(slot);
  std::vector<std::string> parts;
  for (size_t i = 0; i < list.size(list.list); ++i)
    parts.push_back(short_table(*field.table, list.at(list.list, i)));
  return "[" + join(parts, ", ") + "]";
}

std::string short_table(const TableSchema& schema, void* object) {
  std::vector<std::string> parts;
  for (const Field& field : schema.fields())
    if (const FieldSlot slot = field.slot(object); toml_value(field, slot) != default_value(schema, field))
      parts.push_back(format("{} = {}", field.name, short_value(field, slot)));
  return "{ " + join(parts, ", ") + " }";
}

bool is_set(const LoadedConfig& loaded, const std::string& path) {
  const auto found = loaded.chosen.lower_bound(path);
  return found != loaded.chosen.end() && (*found == path || found->starts_with(path + "."));
}

}  // namespace

FinetunePlan plan_finetuning(const FinetuneOptions& options, const MemoryBudget& budget,
                             const std::shared_ptr<Registry>& registry, Logger& log) {
  return Chooser(options, budget, registry, log).plan();
}

std::string finetune_toml(const LoadedConfig& loaded) {
  Config config = loaded.config;
  config.model.from = loaded.model_from;
  const TableSchema& schema = schema_of(config);
  std::string text;
  for (const Field& field : schema.fields())
    if (field.type != FieldType::table && is_set(loaded, field.name))
      text += format("{} = {}\n", field.name, short_value(field, field.slot(&config)));
  for (const Field& section : schema.fields()) {
    if (section.type != FieldType::table || !is_set(loaded, section.name)) continue;
    text += format("\n[{}]\n", section.name);
    void* owner = std::get<TableSlot>(section.slot(&config)).object;
    for (const Field& field : section.table->fields())
      if (is_set(loaded, dotted(section.name, field.name)))
        text += format("{} = {}\n", field.name, short_value(field, field.slot(owner)));
  }
  return text;
}

}  // namespace stepforge
