// SPDX-License-Identifier: Apache-2.0
// `stepforge eval`: evaluates a model on text, or on given token ids with the loss of each token.
#include <algorithm>
#include <cmath>
#include <iostream>
#include <optional>

#include "stepforge/app/torch/commands.h"
#include "stepforge/app/torch/loaded_model.h"
#include "stepforge/app/torch/loss_gradients.h"
#include "stepforge/app/torch/token_rows.h"
#include "stepforge/base/error.h"
#include "stepforge/base/utf8.h"
#include "stepforge/catalog/pair_losses.h"
#include "stepforge/config/data_sources.h"
#include "stepforge/config/load.h"
#include "stepforge/config/toml_text.h"
#include "stepforge/kernels/cpu_allocator.h"
#include "stepforge/plan/job_data.h"
#include "stepforge/plan/step_plan.h"
#include "stepforge/storage/tensor_parts.h"
#include "stepforge/text/chat_template.h"
#include "stepforge/train/evaluation.h"
#include "stepforge/train/preference_data.h"

namespace stepforge {

namespace {

constexpr int64_t kDefaultSeqLen = 512;
constexpr int64_t kRowsPerBatch = 4;

/// The config with which `model` is evaluated on rows of `seq_len` tokens.
Config evaluation_config(const LoadedModel& model, int64_t seq_len, DType compute) {
  Config config = model.config();
  config.training.seq_len = seq_len;
  config.training.local_batch_size = 1;
  config.training.global_batch_size = -1;
  config.data.epoch_remainder = EpochRemainder::carry;
  config.data.group_by_length = false;
  config.data.balance = false;
  config.precision = {.compute = compute};  // as the storage of load_model() has
  return config;
}

/// Throws UsageError if rows of `seq_len` tokens do not fit the model's context; `source` is named in the
/// message.
void check_context(const LoadedModel& model, const std::string& source, int64_t seq_len) {
  const int64_t context = model.config().model.max_position;
  if (seq_len <= context) return;
  throw UsageError(format("{}: rows of {} tokens; the model's context holds {}", source, seq_len, context));
}

void require_finite(double loss, const std::filesystem::path& model) {
  if (!std::isfinite(loss)) throw Error(format("the loss of {} is not finite: {}", model.string(), loss));
}

/// A reward model: writes the score of each token as "score", and prints the last ones.
int score_tokens(const EvalOptions& options, LoadedModel& model, DType compute) {
  const Batch batch = read_token_rows(options.tokens, model.spec.vocab_size);
  check_context(model, options.tokens.string(), batch.seq_len);
  const StepProgram program =
      plan_evaluation(plan_job(evaluation_config(model, batch.seq_len, compute), {}, model.spec, model.spec));
  Model forward = model.forward(batch.seq_len);
  Executor executor(program, forward, *model.store);
  std::optional<SafetensorsWriter> writer;
  if (!options.output.empty())
    writer.emplace(options.output,
                   std::vector<TensorSpec>{{"score", DType::f32, {batch.rows, batch.seq_len}}});
  for (int64_t row = 0; row < batch.rows; ++row) {
    const at::Tensor scores =
        evaluate_batch(executor, one_row(batch, row), /*with_logits=*/false).token_loss.cpu().neg();
    if (writer) writer->write("score", bytes_of(scores));
    const auto last = scores.select(0, batch.seq_len - 1).item<double>();
    require_finite(last, options.model);
    std::cout << format("score {:.6f}\n", last);
  }
  if (writer) writer->finish();
  return 0;
}

/// Evaluates one row at a time, so that only one row's logits are in memory.
int evaluate_tokens(const EvalOptions& options, LoadedModel& model, DType compute) {
  const Batch batch = read_token_rows(options.tokens, model.spec.vocab_size);
  check_context(model, options.tokens.string(), batch.seq_len);
  const Config config = evaluation_config(model, batch.seq_len, compute);
  const StepProgram program = plan_evaluation(plan_job(config, {}, model.spec, model.spec));
  Model forward = model.forward(batch.seq_len);
  Executor executor(program, forward, *model.store);

  // Logits come first in the file: their rows are written as they are computed, the small losses at the end.
  std::vector<TensorSpec> tensors;
  if (options.logits)
    tensors.push_back({"logits", DType::f32, {batch.rows, batch.seq_len, model.spec.vocab_size}});
  tensors.push_back({"token_loss", DType::f32, {batch.rows, batch.seq_len}});
  std::optional<SafetensorsWriter> writer;
  if (!options.output.empty()) writer.emplace(options.output, tensors);
  std::vector<at::Tensor> token_losses;
  double loss_sum = 0.0;
  for (int64_t row = 0; row < batch.rows; ++row) {
    const BatchLoss result = evaluate_batch(executor, one_row(batch, row), options.logits);
    loss_sum += result.loss_sum;
    token_losses.push_back(result.token_loss.cpu());
    if (options.logits) writer->write("logits", bytes_of(result.logits.cpu()));
  }
  if (writer) {
    for (const auto& losses : token_losses) writer->write("token_loss", bytes_of(losses));
    writer->finish();
  }
  if (!options.gradients.empty()) write_gradients(options.gradients, config, model, batch);
  const double loss = loss_sum / static_cast<double>(std::max<int64_t>(1, batch.valid_labels));
  std::cout << format("loss {:.6f}  perplexity {:.4f}  over {} tokens\n", loss, std::exp(loss),
                      batch.valid_labels);
  require_finite(loss, options.model);
  return 0;
}

/// Whether some of its data is text.
bool reads_text(const DataPlan& plan) {
  const auto is_text = [](const SourceSpec& spec) { return spec.format != "synthetic" && !is_indexed(spec); };
  return std::ranges::any_of(leaves_of(plan.sources), is_text) ||
         std::ranges::any_of(leaves_of(plan.validation_sources), is_text);
}

/// The sources that the options name, read and checked as data.sources of a configuration.
std::vector<DataSourceConfig> asked_sources(const EvalOptions& options) {
  std::string value = options.sources;
  if (value.empty()) {
    std::vector<std::string> entries;
    for (const auto& path : options.data) {
      std::vector<std::string> keys = {"path=" + toml_string(path.string())};
      keys.insert(keys.end(), options.source_keys.begin(), options.source_keys.end());
      entries.push_back(format("{{{}}}", join(keys, ", ")));
    }
    value = format("[{}]", join(entries, ", "));
  } else if (!options.source_keys.empty()) {
    throw UsageError(
        format("--sources has its own keys; write {} into its entries", options.source_keys.front()));
  }
  const std::vector<std::string> overrides = {"data.sources=" + value};
  return load_config(std::nullopt, overrides).config.data.sources;
}

/// Evaluates all of the named sources, whatever the run leaves out of its own data.
void use_sources(const EvalOptions& options, Config& config) {
  if (options.split == HeldOutPart::test)
    throw UsageError("--split names a part of the run's own data, and --data other data: use one of them");
  config.data.validation_fraction = 0.0;
  config.data.split.clear();
  config.data.document = options.documents;
  config.data.filter = {};
  config.data.deduplicate = false;
  config.data.on_bad_record = BadRecordAction::stop;
  config.data.too_long = TooLong::cut;
  // A data plan needs a training source too; the same text is named but not read.
  config.data.sources = asked_sources(options);
  config.data.validation = config.data.sources;
  config.data.packing = default_packing(config.data);
}

/// The loss of pairs of a reward model, and how it judges them.
void print_pairs(const PairResult& result, double seconds) {
  const double pairs = result.figures[0];
  const double better = result.figures[1] / pairs;
  const double other = result.figures[2] / pairs;
  std::cout << format(
      "loss {:.6f}  accuracy {:.4f}  margin {:.4f}  scores {:.4f} and {:.4f}  over {} pairs, {:.1f} pairs/s\n",
      result.loss, result.figures[5] / pairs, better - other, better, other,
      with_thousands(static_cast<int64_t>(pairs)), pairs / seconds);
}

/// Of a folder, which does not say how it was trained, the usual loss.
PairLoss reward_loss(const Config& config) {
  PreferenceConfig usual;
  usual.loss = PreferenceLoss::reward;
  return find_pair_loss(config.preference.scores() ? config.preference : usual);
}

int evaluate_text(const EvalOptions& options, const LoadedModel& model, DType compute) {
  const int64_t trained = std::filesystem::exists(options.model / "config.json")
                              ? kDefaultSeqLen
                              : model.config().training.seq_len;
  check_context(model, "--seq-len", options.seq_len);
  const int64_t seq_len =
      options.seq_len > 0 ? options.seq_len : std::min(model.config().model.max_position, trained);
  Config config = evaluation_config(model, seq_len, compute);
  const bool other_data = !options.data.empty() || !options.sources.empty();
  if (other_data) {
    use_sources(options, config);
  } else if (!options.source_keys.empty()) {
    throw UsageError(format("{} describes --data, which is missing", options.source_keys.front()));
  }
  // The run's folder, or the model's, has the tokenizer and the template that belong to the weights.
  const std::filesystem::path& folder = model.known.tokenizer_folder;
  const bool has_template = ChatTemplate::exists(folder);
  if (has_template || !options.chat_template.empty())
    config.data.chat_template = options.chat_template.string();
  DataPlan plan = data_plan(config, model.spec.vocab_size);
  plan.records.pairs = reads_layout(config.data, ChatLayout::preference);
  plan.records.unpaired = reads_layout(config.data, ChatLayout::unpaired_preference);
  const bool scores = model.config().model.scores();
  if (scores && !plan.records.pairs)
    throw UsageError(format(
        "{} is a reward model, which compares answers: name pairs with --data FILE --format preference",
        options.model.string()));
  if (has_template) plan.records.tokenizer_folder = folder;
  const std::unique_ptr<Tokenizer> tokenizer = reads_text(plan) ? model.known.require_tokenizer() : nullptr;
  const DataSet data = open_data(plan, tokenizer.get());
  for (const std::string& note : data.notes) std::cerr << printable(note) << '\n';
  const std::shared_ptr<const RowStream>& rows =
      options.split == HeldOutPart::test ? data.test : data.validation;
  if (rows == nullptr)
    throw UsageError(format("the run has no {} data; pass text with --data", choice_name(options.split)));
  const StepProgram program = plan_evaluation(plan_job(config, {}, model.spec, model.spec));
  Model forward = model.forward(seq_len);
  Executor executor(program, forward, *model.store);
  const PairLoss loss = scores ? reward_loss(model.config()) : PairLoss();
  PairTable pairs = scores ? PairTable(*rows) : PairTable();
  const EvaluationResult result = evaluate(executor, *rows, kRowsPerBatch, -1, {}, {},
                                           scores ? adding_to(pairs, loss, *model.store) : TokenLosses());
  if (scores) {
    const PairResult judged = pair_result(loss, pairs.scores({}));
    print_pairs(judged, result.seconds);
    require_finite(judged.loss, options.model);
    return 0;
  }
  std::cout << format("loss {:.6f}  perplexity {:.4f}  ", result.loss, result.perplexity);
  if (std::isfinite(result.bits_per_byte))
    std::cout << format("bits per byte {:.4f}  ", result.bits_per_byte);
  std::cout << format("over {} tokens{}, {:.0f} tok/s\n", with_thousands(result.valid_labels),
                      plan.records.pairs      ? " of both answers of pairs"
                      : plan.records.unpaired ? " of answers"
                                              : "",
                      static_cast<double>(result.tokens) / result.seconds);
  require_finite(result.loss, options.model);
  return 0;
}

}  // namespace

int run(const EvalOptions& options, const CommandContext& context) {
  install_cpu_allocator();
  const ChargeMemory rank(make_rank_memory());
  if (options.logits && (options.output.empty() || options.tokens.empty())) {
    throw UsageError("--logits needs --tokens and --output");
  }
  const bool with_gradient = !options.gradients.empty();
  if (with_gradient && options.tokens.empty()) throw UsageError("--gradients needs --tokens");
  LoadedModel model =
      load_model(options.model, {options.compute, options.device, with_gradient, options.adapters}, context);
  const bool scores = model.config().model.scores();
  if (scores && (options.logits || with_gradient))
    throw UsageError(
        format("{} is a reward model, which has neither logits nor a loss of single texts: leave "
               "--logits and --gradients out",
               options.model.string()));
  if (scores && !options.tokens.empty()) return score_tokens(options, model, options.compute);
  return options.tokens.empty() ? evaluate_text(options, model, options.compute)
                                : evaluate_tokens(options, model, options.compute);
}

}  // namespace stepforge
