// SPDX-License-Identifier: Apache-2.0
// `stepforge data build | show`.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iostream>
#include <memory>
#include <optional>

#include "stepforge/app/commands.h"
#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/log.h"
#include "stepforge/data/show.h"
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
    if (progress.bytes_done == 0) begin_ = now;
    const bool done = progress.bytes_done >= progress.bytes_total;
    if (!done && now - drawn_ < std::chrono::milliseconds(100)) return;
    drawn_ = now;
    const double seconds = std::chrono::duration<double>(now - begin_).count();
    std::cerr << "\r\033[K" << bar(progress, seconds, done) << (done ? "\n" : "") << std::flush;
  }

 private:
  static std::string bar(const TokenizeProgress& progress, double seconds, bool done) {
    constexpr int kWidth = 30;
    const auto bytes = static_cast<double>(progress.bytes_done);
    const double share = bytes / static_cast<double>(std::max<int64_t>(1, progress.bytes_total));
    const auto filled = static_cast<size_t>(std::lround(share * kWidth));
    std::string text =
        format("tokenizing [{}{}] {:3.0f}%  {} of {}  {} tokens", std::string(filled, '#'),
               std::string(kWidth - filled, '.'), 100.0 * share, human_bytes(progress.bytes_done),
               human_bytes(progress.bytes_total), human_count(progress.tokens));
    if (progress.bytes_done == 0 || seconds <= 0.0) return text;
    const double rate = bytes / seconds;
    const double left = static_cast<double>(progress.bytes_total - progress.bytes_done) / rate;
    return text + format("  {}/s  {}", human_bytes(std::llround(rate)),
                         done ? "took " + human_duration(seconds) : human_duration(left) + " left");
  }

  Clock::time_point begin_{};
  Clock::time_point drawn_{};
};

fs::path output_name(const DataBuildOptions& options, const std::string& part) {
  fs::path prefix = options.output_prefix;
  prefix += part + "_" + options.json_key + "_document";
  return prefix;
}

/// Publishes one pair and prints its totals.
void finish(IndexedDatasetWriter& writer, const DatasetStatistics& statistics, const Tokenizer& tokenizer,
            const std::string& source) {
  std::error_code ignored;
  // A description of an older pair must not remain beside the new one.
  fs::remove(description_path(writer.prefix()), ignored);
  writer.publish();
  write_description(writer.prefix(), statistics, tokenizer, source);
  std::cout << format("{}: {} documents, {} tokens, {:.3f} bytes a token\n",
                      bin_path(writer.prefix()).string(), with_thousands(statistics.documents),
                      with_thousands(statistics.tokens),
                      static_cast<double>(statistics.text_bytes) /
                          static_cast<double>(std::max<int64_t>(1, statistics.tokens)));
}

void check(const DataBuildOptions& options, const Tokenizer& tokenizer) {
  if (options.output_prefix.empty())
    throw UsageError("data build needs --output-prefix: the path of the pair to write");
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
                                        .loss_on = options.loss_on,
                                        .tokenizer_folder = tokenizer_folder(options.tokenizer),
                                        .chat_template = options.chat_template});
  const TextSource& source = *records.source;
  if (const std::string skipped = source.skipped(); !skipped.empty()) std::cerr << skipped << '\n';
  if (options.output_prefix.has_parent_path()) fs::create_directories(options.output_prefix.parent_path());
  const DatasetContents contents{token_type_for(tokenizer.vocab_size()), records.format->has_loss_mask()};
  IndexedDatasetWriter train(output_name(options, ""), contents);
  std::unique_ptr<IndexedDatasetWriter> validation;
  if (options.validation_fraction > 0.0) {
    validation = std::make_unique<IndexedDatasetWriter>(output_name(options, "_validation"), contents);
  }
  const TokenizeOptions tokenizing{.workers = options.workers,
                                   .split = {.fraction = options.validation_fraction, .seed = 0}};
  const TokenizeResult result =
      tokenize(source, *records.format, tokenizing, train, validation.get(), terminal_progress());
  finish(train, result.train, tokenizer, source.description());
  if (validation) finish(*validation, result.validation, tokenizer, source.description());
  return 0;
}

int data_show_command(const ConfigArgs& args, const DataShowOptions& options) {
  const Config config = args.load(ConfigUse::data).config;
  if (options.rows < 1 || options.first_row < 0) {
    throw UsageError(format("--row {} --rows {}: rows are numbered from 0, and at least one is shown",
                            options.first_row, options.rows));
  }
  Logger log(LogLevel::info, stderr_is_terminal());
  const auto tokenizer = job_tokenizer(config, log);
  const DataSet data =
      open_data(data_plan(config, planned_vocabulary(config)), tokenizer.get(), terminal_progress());
  for (const std::string& note : data.notes) std::cerr << note << '\n';
  const auto& stream = options.validation ? data.validation : data.train;
  if (!stream)
    throw UsageError("there is no validation data; set data.validation or data.validation_fraction");
  for (const std::string& line : describe_sources(data)) std::cout << line << '\n';
  const auto total = stream->total_rows();
  std::cout << format("\n{} rows of {} tokens {}\n\n", with_thousands(stream->rows_per_epoch()),
                      stream->seq_len(), total ? "in all" : "in an epoch");
  const Batch batch = stream->rows(options.first_row, options.rows);
  if (batch.rows == 0)
    throw UsageError(format("--row {}: there are only {} rows", options.first_row, total.value_or(0)));
  std::cout << render_batch(batch, *tokenizer,
                            {.colour = stdout_is_terminal(), .max_tokens = options.max_tokens});
  return 0;
}

}  // namespace stepforge
