// SPDX-License-Identifier: Apache-2.0
// `stepforge data build | show | pack`.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "stepforge/app/commands.h"
#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/log.h"
#include "stepforge/base/utf8.h"
#include "stepforge/config/load.h"
#include "stepforge/data/preset_packing.h"
#include "stepforge/data/sample.h"
#include "stepforge/data/show.h"
#include "stepforge/data/step_balance.h"
#include "stepforge/dataset/dataset_build.h"
#include "stepforge/plan/job_data.h"
#include "stepforge/text/tokenizer.h"

namespace stepforge {

namespace fs = std::filesystem;

namespace {

using Clock = std::chrono::steady_clock;

/// Redraws a bar at most ten times a second; ends its line when all bytes are done.
class ProgressLine {
 public:
  void update(const TokenizeProgress& progress) {
    if (progress.waiting) {
      std::cerr << "another process is building this data; waiting for it\n" << std::flush;
      return;
    }
    if (progress.verifying) return;
    const auto now = Clock::now();
    if (begin_ == Clock::time_point{}) {
      begin_ = now;
      first_ = progress.bytes_done;
    }
    const bool done = progress.bytes_done >= progress.bytes_total;
    if (!done && now - drawn_ < std::chrono::milliseconds(100)) return;
    drawn_ = now;
    const double seconds = std::chrono::duration<double>(now - begin_).count();
    std::cerr << "\r\033[K" << bar(progress, first_, seconds, done) << (done ? "\n" : "") << std::flush;
  }

 private:
  /// `first`: the bytes that an earlier build did.
  static std::string bar(const TokenizeProgress& progress, int64_t first, double seconds, bool done) {
    constexpr int kWidth = 30;
    const auto bytes = static_cast<double>(progress.bytes_done);
    const double share = bytes / static_cast<double>(std::max<int64_t>(1, progress.bytes_total));
    const auto filled = static_cast<size_t>(std::lround(share * kWidth));
    std::string text =
        format("tokenizing [{}{}] {:3.0f}%  {} of {}  {} tokens", std::string(filled, '#'),
               std::string(kWidth - filled, '.'), 100.0 * share, human_bytes(progress.bytes_done),
               human_bytes(progress.bytes_total), human_count(progress.tokens));
    if (progress.bytes_done == first || seconds <= 0.0) return text;
    const double rate = (bytes - static_cast<double>(first)) / seconds;
    const double left = static_cast<double>(progress.bytes_total - progress.bytes_done) / rate;
    return text + format("  {}/s  {}", human_bytes(std::llround(rate)),
                         done ? "took " + human_duration(seconds) : human_duration(left) + " left");
  }

  Clock::time_point begin_{};
  int64_t first_ = 0;
  Clock::time_point drawn_{};
};

fs::path output_name(const DataBuildOptions& options, const std::string& part) {
  fs::path prefix = options.output_prefix;
  prefix += part + "_" + options.json_key + "_document";
  return prefix;
}

/// Prints the totals of a finished pair.
void print_totals(const fs::path& prefix, const DatasetStatistics& statistics) {
  std::cout << format("{}: {} documents, {} tokens, {:.3f} bytes a token\n", bin_path(prefix).string(),
                      with_thousands(statistics.documents), with_thousands(statistics.tokens),
                      static_cast<double>(statistics.text_bytes) /
                          static_cast<double>(std::max<int64_t>(1, statistics.tokens)));
}

/// Reads the rules as [data.filter] would, with its checks and messages.
TextFilterRules filter_rules(const std::vector<std::string>& settings) {
  std::vector<std::string> overrides;
  for (const std::string& setting : settings) overrides.push_back("data.filter." + setting);
  return text_filter_rules(load_config(std::nullopt, overrides).config.data.filter);
}

DocumentLimit document_limit(const DataBuildOptions& options) {
  if (options.too_long.empty()) return {};
  return {.rule = parse_too_long(options.too_long), .tokens = options.seq_len};
}

void check(const DataBuildOptions& options, const Tokenizer& tokenizer) {
  if (options.output_prefix.empty())
    throw UsageError("data build needs --output-prefix: the path of the pair to write");
  if (!options.dataset.empty() && options.input.size() != 1) {
    throw UsageError(
        format("--dataset {}: name one --input, the dataset_info.json that has this entry, or its folder",
               options.dataset));
  }
  if (options.append_eod && !tokenizer.eos_id()) {
    throw UsageError(
        "--append-eod needs a tokenizer with an end-of-text token, and this one has none; use "
        "--no-append-eod");
  }
  if (!(options.validation_fraction >= 0.0 && options.validation_fraction < 1.0)) {
    throw UsageError(format("--validation-fraction {}: expected a share of at least 0 and below 1",
                            options.validation_fraction));
  }
}

/// A progress bar on standard error if that is a terminal; else empty.
TokenizeProgressFunction terminal_progress() {
  if (!stderr_is_terminal()) return {};
  auto line = std::make_shared<ProgressLine>();
  return [line](const TokenizeProgress& progress) { line->update(progress); };
}

fs::path tokenizer_folder(const fs::path& tokenizer) {
  return fs::is_directory(tokenizer) ? tokenizer : tokenizer.parent_path();
}

std::unique_ptr<Tokenizer> tokenizer_of(const Config& config) {
  Logger log(LogLevel::info, stderr_is_terminal());
  return job_tokenizer(config, log);
}

/// The data of a configuration; prints notes about it.
DataSet open_noted(const Config& config, const Tokenizer& tokenizer) {
  DataSet data = open_data(data_plan(config, planned_vocabulary(config)), &tokenizer, terminal_progress());
  for (const std::string& note : data.notes) std::cerr << printable(note) << '\n';
  return data;
}

/// How evenly the rows of a step divide the cost of attention between 2, 4 and 8 ranks; "" if they cannot be
/// divided.
std::string step_cost(const RowStream& stream, int64_t first_row, int64_t rows) {
  std::vector<int64_t> costs;
  for (int64_t row = first_row; row < first_row + rows; ++row) costs.push_back(stream.attention_cost(row));
  std::vector<std::string> shares;
  for (const int64_t ranks : {2, 4, 8}) {
    if (rows % ranks == 0) shares.push_back(format("{:.1f}% on {}", 100.0 * imbalance(costs, ranks), ranks));
  }
  if (shares.empty()) return "";
  return format("attention in the step from row {}, costliest rank above the mean: {} ranks\n\n", first_row,
                join(shares, ", "));
}

}  // namespace

int data_build_command(const DataBuildOptions& options) {
  const std::unique_ptr<Tokenizer> loaded =
      options.tokenizer == "bytes" ? make_byte_tokenizer() : load_tokenizer(options.tokenizer);
  const Tokenizer& tokenizer = *loaded;
  check(options, tokenizer);
  const Records records = open_records(options.input, tokenizer,
                                       {.format = options.format,
                                        .field = options.json_key,
                                        .documents = options.documents,
                                        .ends = {.bos = options.bos, .eos = options.append_eod},
                                        .filter = filter_rules(options.filter),
                                        .loss_on = options.loss_on,
                                        .dataset = options.dataset,
                                        .limit = document_limit(options),
                                        .tokenizer_folder = tokenizer_folder(options.tokenizer),
                                        .chat_template = options.chat_template});
  const TextSource& source = *records.source;
  if (const std::string& skipped = source.skipped(); !skipped.empty())
    std::cerr << printable(skipped) << '\n';
  if (options.output_prefix.has_parent_path()) fs::create_directories(options.output_prefix.parent_path());
  const TokenizeOptions tokenizing{
      .workers = options.workers,
      .split = {.fraction = options.validation_fraction, .seed = 0},
      .max_records = records.max_records,
      .deduplicate = options.deduplicate,
      .max_bad_records = options.on_bad_record == "skip" ? options.max_bad_records : 0};
  const DatasetBuild build(source, *records.format, tokenizing);
  const DatasetOutput output{output_name(options, ""), output_name(options, "_validation")};
  if (!build_dataset(build, output, options.overwrite, terminal_progress())) std::cout << "already built\n";
  const TokenizeResult report = read_description_file(description_path(output.train)).report;
  print_totals(output.train, report.train);
  if (build.holds_out()) print_totals(output.validation, report.validation);
  std::cout << printable(report_text(report));
  return 0;
}

int data_show_command(const ConfigArgs& args, const DataShowOptions& options) {
  const Config config = args.load(ConfigUse::data).config;
  if (options.rows < 1 || options.first_row < 0) {
    throw UsageError(format("--row {} --rows {}: rows are numbered from 0, and at least one is shown",
                            options.first_row, options.rows));
  }
  const auto tokenizer = tokenizer_of(config);
  const ShowOptions shown{.colour = stdout_is_terminal(), .max_tokens = options.max_tokens};
  if (options.sample >= 0) {
    const DataPlan plan = data_plan(config, planned_vocabulary(config));
    const auto sources = leaves_of(options.validation ? plan.validation_sources : plan.sources);
    const Sample sample = read_sample(plan, find_source(sources, options.source), options.sample, *tokenizer);
    std::cout << render_sample(sample, *tokenizer, shown);
    return 0;
  }
  const DataSet data = open_noted(config, *tokenizer);
  const auto& stream = options.validation ? data.validation : data.train;
  if (!stream)
    throw UsageError("there is no validation data; set data.validation or data.validation_fraction");
  for (const std::string& line : describe_sources(data)) std::cout << printable(line) << '\n';
  const auto total = stream->total_rows();
  std::cout << format("\n{} rows of {} tokens {}\n\n", with_thousands(stream->rows_per_epoch()),
                      stream->seq_len(), total ? "in all" : "in an epoch");
  if (const int64_t rows = config.training.global_batch_size; rows > 0 && !total)
    std::cout << step_cost(*stream, options.first_row / rows * rows, rows);
  const Batch batch = stream->rows(options.first_row, options.rows);
  if (batch.rows == 0)
    throw UsageError(format("--row {}: there are only {} rows", options.first_row, total.value_or(0)));
  std::cout << render_batch(batch, *tokenizer, shown);
  return 0;
}

int data_pack_command(const ConfigArgs& args, const fs::path& output) {
  const Config config = args.load(ConfigUse::data).config;
  const auto tokenizer = tokenizer_of(config);
  const DataSet data = open_noted(config, *tokenizer);
  const auto& sources = data.train->sources();
  const PackTable* table = sources.size() == 1 ? sources[0].source->pack_table() : nullptr;
  if (table == nullptr) {
    throw UsageError(
        format("data.packing = \"{}\" with {} source(s) makes no rows that files can name: "
               "pack one source of documents with another packing, such as \"best_fit\"",
               choice_name(config.data.packing), sources.size()));
  }
  write_pack_table(output, *table);
  std::cout << format("{}: {} rows of {} pieces of documents\n", output.string(),
                      with_thousands(table->rows()), with_thousands(std::ssize(table->pieces)));
  return 0;
}

}  // namespace stepforge
