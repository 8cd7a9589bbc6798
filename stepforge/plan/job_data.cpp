// SPDX-License-Identifier: Apache-2.0
#include "stepforge/plan/job_data.h"

#include <algorithm>

#include "stepforge/base/cache_dir.h"
#include "stepforge/base/error.h"
#include "stepforge/base/file_writer.h"
#include "stepforge/base/staged.h"
#include "stepforge/config/data_sources.h"
#include "stepforge/plan/data_source_kind.h"
#include "stepforge/records/conversation.h"
#include "stepforge/records/count_words.h"
#include "stepforge/records/dataset_info.h"
#include "stepforge/tensorfile/manifest.h"
#include "stepforge/text/bpe_trainer.h"
#include "stepforge/text/chat_template.h"

namespace stepforge {

namespace {

bool is_synthetic(const DataSourceConfig& source) {
  return source.format == DataFormat::synthetic;
}

bool is_plain_text(const DataSourceConfig& source) {
  const std::string format_name(choice_name(source.format));
  return source.kind == kBuiltinSource && !is_synthetic(source) && !find_chat_layout(format_name) &&
         source.dataset.empty() && !is_indexed({.path = source.path, .format = format_name});
}

/// The sources that a tokenizer is trained on. Throws UsageError if there are none.
std::vector<DataSourceConfig> text_for_tokenizer(const Config& config) {
  std::vector<DataSourceConfig> texts;
  std::vector<std::string> skipped;
  for (const auto& entry : leaf_sources("data.sources", config.data.sources)) {
    const DataSourceConfig& source = *entry.source;
    if (is_plain_text(source)) {
      texts.push_back(source);
    } else {
      skipped.push_back(source.kind != kBuiltinSource ? source.kind
                        : is_synthetic(source)        ? "synthetic"
                                                      : source.path);
    }
  }
  if (texts.empty()) {
    throw UsageError(
        format("tokenizer.type = \"bpe\" without tokenizer.path trains a tokenizer on text, but data.sources "
               "names none ({}): set tokenizer.path to the tokenizer that the token ids were made with, "
               "or add a text source",
               join(skipped, ", ")));
  }
  return texts;
}

std::unique_ptr<Tokenizer> train_tokenizer(const Config& config, const std::filesystem::path& folder,
                                           Logger& log, const std::function<void()>& progress) {
  const auto& tokenizer = config.tokenizer;
  const BpeRecipe recipe{.vocab_size = static_cast<int32_t>(tokenizer.vocab_size),
                         .min_frequency = tokenizer.min_frequency,
                         .special_tokens = tokenizer.special_tokens,
                         .eos_token = tokenizer.eos_token,
                         .bos_token = tokenizer.bos_token,
                         .pattern = tokenizer.pattern,
                         .digits = std::string(choice_name(tokenizer.digits))};
  const BpeTraining training(recipe);
  WordCounter counter(training.counting());
  for (const DataSourceConfig& source : text_for_tokenizer(config)) {
    count_words(TextSource({.paths = {source.path},
                            .format = std::string(choice_name(source.format)),
                            .field = source.field}),
                counter, tokenizer.train_bytes, progress);
  }
  if (counter.counts().empty())
    throw UsageError("data.sources have no word to train a tokenizer on; add text");
  const TrainedBpe trained = training.train(counter.counts(), progress);
  auto made = training.tokenizer(trained);
  create_folder_inside(folder.parent_path(), folder.filename());
  made->save_pretrained(folder);
  log.info("trained a BPE tokenizer of {} tokens on {} of text: {}", with_thousands(trained.vocab_size),
           human_bytes(counter.bytes()), folder.string());
  return made;
}

/// The folder of the files beside the tokenizer.
std::filesystem::path tokenizer_folder(const Config& config) {
  const std::filesystem::path path = config.tokenizer.path;
  if (path.empty()) return run_tokenizer_folder(config);
  return std::filesystem::is_directory(path) ? path : path.parent_path();
}

/// The function that opens the source, if a plug-in reads it.
decltype(SourceSpec::open) opener_of(const std::shared_ptr<const Config>& config,
                                     const DataSourceConfig& source) {
  if (source.kind == kBuiltinSource) return {};
  const auto* kind = config->extensions.registry().find<DataSourceKind>(source.kind);
  if (kind == nullptr)
    throw UsageError(format("there is no data source \"{}\"; is a plug-in missing?", source.kind));
  return [config, source, kind](const Tokenizer* tokenizer, int64_t vocab_size) {
    return kind->open({*config, source, tokenizer, vocab_size});
  };
}

std::vector<SourceSpec> source_specs(const std::shared_ptr<const Config>& config,
                                     const std::vector<DataSourceConfig>& sources) {
  std::vector<SourceSpec> specs;
  for (const auto& source : sources) {
    const bool is_named = !source.name.empty() || source.kind == kBuiltinSource;
    specs.push_back({.path = source.path,
                     .weight = source.weight,
                     .format = std::string(choice_name(source.format)),
                     .field = source.field,
                     .loss_on = std::string(choice_name(source.loss_on)),
                     .dataset = source.dataset,
                     .name = is_named ? source.name : source.kind,
                     .epochs = source.epochs > 0 ? std::optional(source.epochs) : std::nullopt,
                     .concat = source.combine == SourceCombine::concat,
                     .sources = source_specs(config, source.sources),
                     .open = opener_of(config, source)});
  }
  return specs;
}

}  // namespace

std::unique_ptr<Tokenizer> known_tokenizer(const Config& config) {
  const std::filesystem::path path = config.tokenizer.path;
  if (config.tokenizer.type == TokenizerType::bytes) return make_byte_tokenizer();
  if (!path.empty()) return std::filesystem::exists(path) ? load_tokenizer(path) : nullptr;
  const std::filesystem::path folder = run_tokenizer_folder(config);
  if (!holds_tokenizer(folder)) return nullptr;
  std::unique_ptr<Tokenizer> stored = load_tokenizer(folder);
  // A start with other settings may have failed after it had saved its tokenizer. That of a checkpoint stays.
  const bool is_of_other_settings =
      config.tokenizer.type == TokenizerType::bpe &&
      (stored->vocab_size() > config.tokenizer.vocab_size ||
       stored->fingerprint() == make_byte_tokenizer()->fingerprint()) &&
      list_checkpoints(std::filesystem::path(config.run_dir) / config.checkpoint.folder).empty();
  return is_of_other_settings ? nullptr : std::move(stored);
}

int64_t planned_vocabulary(const Config& config) {
  return config.model.vocab_size > 0 ? config.model.vocab_size
                                     : planned_vocabulary(config, known_tokenizer(config).get());
}

int64_t planned_vocabulary(const Config& config, const Tokenizer* known) {
  if (config.model.vocab_size > 0) return config.model.vocab_size;
  if (known != nullptr) return known->vocab_size();
  if (config.tokenizer.type == TokenizerType::bpe && config.tokenizer.path.empty())
    return config.tokenizer.vocab_size;
  throw UsageError(
      format("model.vocab_size = 0 stands for the size of the tokenizer, but there is none in {}: set "
             "tokenizer.path to its folder, or model.vocab_size",
             config.tokenizer.path.empty() ? run_tokenizer_folder(config).string() : config.tokenizer.path));
}

void check_vocabulary(const LoadedConfig& loaded, int64_t tokens) {
  const int64_t rows = loaded.config.model.vocab_size;
  if (rows == 0 || tokens <= rows) return;
  throw UsageError(
      format("{}: model.vocab_size = {}, but the tokenizer has {} tokens; "
             "raise model.vocab_size or leave it 0",
             where(loaded, "model.vocab_size"), rows, tokens));
}

namespace {

/// Throws UsageError if messages cannot be rendered; prompts and completions may be plain texts.
void require_template(const Config& config, const RecordOptions& records) {
  if (!records.chat_template.empty() || ChatTemplate::exists(records.tokenizer_folder)) return;
  for (const DataSourceAt& entry : leaf_sources("data.sources", config.data.sources)) {
    const DataFormat source = entry.source->format;
    if (source != DataFormat::messages && source != DataFormat::sharegpt && source != DataFormat::alpaca)
      continue;
    throw UsageError(
        format("{}: there is no chat template: name a folder that has one in tokenizer.path, or set "
               "data.chat_template",
               entry.place));
  }
}

}  // namespace

void check_sources(const Config& config, const Tokenizer* tokenizer) {
  const bool trains = tokenizer == nullptr && config.tokenizer.type == TokenizerType::bpe;
  if (trains && config.tokenizer.path.empty()) static_cast<void>(text_for_tokenizer(config));
  const auto bytes = make_byte_tokenizer();  // stands for one that is not there yet
  const std::string& chat_template = config.data.chat_template;
  if (!chat_template.empty()) static_cast<void>(ChatTemplate::load(tokenizer_folder(config), chat_template));
  DataPlan plan = data_plan(config, planned_vocabulary(config, tokenizer));
  require_template(config, plan.records);
  const std::vector<SourceSpec> train = leaves_of(plan.sources);
  const std::vector<SourceSpec> validation = leaves_of(plan.validation_sources);
  plan.packing = Packing::concat;
  plan.validation_sources.clear();
  const auto check = [&](const SourceSpec& source) {
    if (source.open || source.format == "synthetic") return;
    if (is_indexed(source)) {
      plan.sources = {source};
      static_cast<void>(open_data(plan, tokenizer));
    } else {
      static_cast<void>(open_records({source.path}, tokenizer == nullptr ? *bytes : *tokenizer,
                                     record_options(plan, source)));
    }
  };
  for (const SourceSpec& source : train) {
    require_split(plan, source);
    check(source);
  }
  plan.validation_fraction = 0;
  plan.split.reset();
  for (const SourceSpec& source : validation) check(source);
}

std::filesystem::path run_tokenizer_folder(const Config& config) {
  return std::filesystem::path(config.run_dir) / "tokenizer";
}

void save_run_tokenizer(const Config& config, const Tokenizer& tokenizer) {
  const std::string& chat_template = config.data.chat_template;
  if (config.tokenizer.type == TokenizerType::bytes && chat_template.empty()) return;
  const std::filesystem::path folder = run_tokenizer_folder(config);
  create_folder_inside(config.run_dir, folder.filename());
  tokenizer.save_pretrained(folder);
  if (!chat_template.empty())
    write_file_atomic(folder / kChatTemplateFile, read_chat_template(chat_template));
}

std::unique_ptr<Tokenizer> job_tokenizer(const Config& config, Logger& log,
                                         const std::function<void()>& progress) {
  const std::filesystem::path folder = run_tokenizer_folder(config);
  const auto& tokenizer = config.tokenizer;
  if (!tokenizer.path.empty()) return load_tokenizer(tokenizer.path);
  if (auto known = known_tokenizer(config)) return known;
  if (tokenizer.type == TokenizerType::hf) throw UsageError("tokenizer.type = \"hf\" needs tokenizer.path");
  return train_tokenizer(config, folder, log, progress);
}

TextFilterRules text_filter_rules(const DataFilterConfig& filter) {
  return {.min_bytes = filter.min_bytes,
          .max_bytes = filter.max_bytes,
          .min_words = filter.min_words,
          .max_words = filter.max_words,
          .max_symbols = filter.max_symbols,
          .min_mean_word_length = filter.min_mean_word_length,
          .max_mean_word_length = filter.max_mean_word_length,
          .max_repeated_lines = filter.max_repeated_lines,
          .include = filter.include,
          .exclude = filter.exclude};
}

bool reads_layout(const DataConfig& data, ChatLayout layout) {
  return std::ranges::any_of(leaf_sources("data.sources", data.sources), [&](const DataSourceAt& entry) {
    const DataSourceConfig& source = *entry.source;
    return source.dataset.empty() ? choice_name(source.format) == chat_layout_name(layout)
                                  : find_dataset(source.path, source.dataset).layout == layout;
  });
}

DataPlan data_plan(const Config& config, int64_t vocab_size) {
  const auto& data = config.data;
  DataPlan plan;
  const auto shared = std::make_shared<const Config>(config);
  plan.sources = source_specs(shared, data.sources);
  plan.validation_sources = source_specs(shared, data.validation);
  plan.validation_fraction = data.validation_fraction;
  if (!data.split.empty()) plan.split = SplitRatios::parse(data.split);
  plan.packing = data.packing;
  plan.preset = data.preset;
  plan.steps = {.rows_per_step = std::max<int64_t>(0, config.training.global_batch_size),
                .fill_epochs = data.epoch_remainder == EpochRemainder::smaller_step,
                .group_by_length = data.group_by_length,
                .balance = data.balance};
  plan.deduplicate = data.deduplicate;
  if (data.on_bad_record == BadRecordAction::skip) plan.max_bad_records = data.max_bad_records;
  plan.records.filter = text_filter_rules(data.filter);
  plan.records.documents = choice_name(data.document);
  plan.records.ends = {.bos = data.bos, .eos = data.eos};
  plan.records.tokenizer_folder = tokenizer_folder(config);
  plan.records.chat_template = data.chat_template;
  plan.records.unpaired = config.preference.unpaired();
  plan.records.pairs = config.preference.enabled() && !config.preference.unpaired();
  plan.records.limit = {.rule = data.too_long, .tokens = config.training.seq_len};
  plan.seq_len = config.training.seq_len;
  plan.seed = static_cast<uint64_t>(data.seed);
  plan.shuffle = data.shuffle;
  plan.weights_by = data.weights_by;
  plan.temperature = data.temperature;
  plan.cache_dir = data.cache_dir.empty() ? cache_dir() / "data" : std::filesystem::path(data.cache_dir);
  plan.vocab_size = vocab_size;
  plan.synthetic.rows = std::max<int64_t>(1, data.synthetic_tokens / config.training.seq_len);
  plan.synthetic.document_length = data.synthetic_document_length;
  return plan;
}

}  // namespace stepforge
