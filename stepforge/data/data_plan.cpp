// SPDX-License-Identifier: Apache-2.0
#include "stepforge/data/data_plan.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <map>
#include <span>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/data/concat_rows.h"
#include "stepforge/data/packed_rows.h"
#include "stepforge/data/preset_packing.h"
#include "stepforge/data/synthetic.h"
#include "stepforge/dataset/dataset_cache.h"
#include "stepforge/dataset/dataset_description.h"
#include "stepforge/dataset/token_shards.h"
#include "stepforge/records/conversation.h"

namespace stepforge {

namespace fs = std::filesystem;

namespace {

std::string name_of_source(const SourceSpec& spec) {
  if (!spec.name.empty()) return spec.name;
  if (!spec.dataset.empty()) return spec.dataset;
  return spec.format == "synthetic" ? spec.format : spec.path;
}

/// What a source is opened for.
enum class RowUse : uint8_t { training, validation };

struct OpenedSource {
  std::shared_ptr<const RowSource> train;
  std::shared_ptr<const RowSource> validation{};  ///< null unless a part is held out
  std::shared_ptr<const RowSource> test{};        ///< the same
};

struct HeldOut {
  std::vector<SourceEntry> validation;
  std::vector<SourceEntry> test;
};

/// Opens the sources of one plan.
class SourceOpener {
 public:
  SourceOpener(const DataPlan& plan, const Tokenizer* tokenizer, const TokenizeProgressFunction& progress)
      : plan_(plan), tokenizer_(tokenizer), progress_(progress) {}

  /// `fraction`: how much of it is held out.
  OpenedSource open(const SourceSpec& spec, double fraction, RowUse use) {
    if (use == RowUse::training) require_split(plan_, spec);
    const bool judged = plan_.records.pairs || plan_.records.unpaired;
    if (judged && (spec.open || spec.format == "synthetic" || is_indexed(spec))) {
      throw UsageError(format(
          "{}: preference.loss {}, which only files of format \"{}\" hold", name_of_source(spec),
          plan_.records.pairs ? "compares pairs of answers" : "judges single answers",
          chat_layout_name(plan_.records.pairs ? ChatLayout::preference : ChatLayout::unpaired_preference)));
    }
    if (spec.open) return open_own(spec, fraction);
    if (spec.format == "synthetic") return open_synthetic(fraction);
    if (spec.path.empty())
      throw UsageError("a data source has no path: name a file, a folder or an indexed dataset");
    return is_indexed(spec) ? open_indexed(spec, fraction, use) : open_text(spec, fraction, use);
  }

  /// The training part of the list as a tree; appends what is held out to `held_out`.
  std::vector<SourceEntry> open_all(const std::vector<SourceSpec>& specs, double fraction, RowUse use,
                                    HeldOut& held_out) {
    std::vector<SourceEntry> entries;
    for (const SourceSpec& spec : specs) {
      SourceEntry entry{
          .name = name_of_source(spec), .weight = spec.weight, .epochs = spec.epochs, .concat = spec.concat};
      if (!spec.sources.empty()) {
        entry.entries = open_all(spec.sources, fraction, use, held_out);
      } else {
        entry.name = unique(entry.name);
        report_ = {};
        OpenedSource opened = open(spec, fraction, use);
        reports.push_back(std::move(report_));
        entry.source = std::move(opened.train);
        if (opened.validation)
          held_out.validation.push_back({.name = entry.name, .source = std::move(opened.validation)});
        if (opened.test) held_out.test.push_back({.name = entry.name, .source = std::move(opened.test)});
        paths.push_back(spec.path);
      }
      entries.push_back(std::move(entry));
    }
    return entries;
  }

  /// Messages to the user, a line each.
  std::vector<std::string> notes;
  /// Of the sources opened by open_all, in order.
  std::vector<std::string> paths;
  std::vector<TokenizeResult> reports;  ///< the same; empty ones of sources that are no text
  /// How many of them have each name.
  std::map<std::string, int> names;

 private:
  /// Sources of one name would have one metric.
  std::string unique(const std::string& name) {
    const int uses = ++names[name];
    return uses == 1 ? name : format("{} ({})", name, uses);
  }

  std::optional<int32_t> end_of_text() const {
    return tokenizer_ != nullptr ? tokenizer_->eos_id() : std::nullopt;
  }
  int64_t vocab_size() const { return tokenizer_ != nullptr ? tokenizer_->vocab_size() : plan_.vocab_size; }

  OpenedSource open_synthetic(double fraction) const {
    const int64_t held_out = std::llround(fraction * static_cast<double>(plan_.synthetic.rows));
    SyntheticOptions options{.seed = plan_.seed,
                             .vocab_size = vocab_size(),
                             .seq_len = plan_.seq_len,
                             .rows = plan_.synthetic.rows - held_out,
                             .document_length = plan_.synthetic.document_length};
    OpenedSource opened;
    opened.train = std::make_shared<SyntheticSource>(options);
    if (held_out > 0) {
      options.first_row = options.rows;
      options.rows = held_out;
      opened.validation = std::make_shared<SyntheticSource>(options);
    }
    return opened;
  }

  OpenedSource open_own(const SourceSpec& spec, double fraction) {
    const std::shared_ptr<const RowSource> rows = spec.open(tokenizer_, vocab_size());
    if (rows == nullptr || rows->rows() < 1)
      throw UsageError(format("data source {}: it has no rows", name_of_source(spec)));
    if (rows->seq_len() != plan_.seq_len) {
      throw UsageError(format("data source {}: its rows have {} tokens, but training.seq_len is {}",
                              name_of_source(spec), rows->seq_len(), plan_.seq_len));
    }
    const int64_t held_out = std::llround(fraction * static_cast<double>(rows->rows()));
    return held_out == 0 ? OpenedSource{rows} : last_rows_held_out(rows, held_out);
  }

  OpenedSource open_indexed(const SourceSpec& spec, double fraction, RowUse use) {
    if (fraction > 0.0) {
      throw UsageError(
          format("{} is a finished dataset: a validation fraction of {} cannot be held out of it; name a "
                 "validation source, or split it with data build --validation-fraction",
                 spec.path, fraction));
    }
    if (plan_.records.limit.rule != TooLong::cut)
      throw UsageError(
          format("{} is a finished dataset, of which long documents can only be cut: set data.too_long = "
                 "\"cut\", or name the source that it was built from",
                 spec.path));
    if (names_pair_beside_folder(spec.path)) {
      notes.push_back(format("{}: the pair of this name is read; \"{}/\" would be the folder",
                             name_of_source(spec), spec.path));
    }
    auto dataset = open_finished_dataset(spec.path, spec.format, end_of_text());
    const auto description = read_description(*dataset);
    if (description && tokenizer_ != nullptr &&
        description->tokenizer_fingerprint != tokenizer_->fingerprint()) {
      throw UsageError(
          format("{} was built with another tokenizer (fingerprint {}, this one has {}): build it again with "
                 "data build, or name its tokenizer",
                 spec.path, description->tokenizer_fingerprint, tokenizer_->fingerprint()));
    }
    std::optional<int64_t> text_bytes;
    if (description) text_bytes = description->statistics.text_bytes;
    if (use == RowUse::training && plan_.split) return split_documents(spec, dataset, text_bytes);
    return {rows_of(spec, std::move(dataset), text_bytes, use)};
  }

  OpenedSource split_documents(const SourceSpec& spec, const std::shared_ptr<const IndexedDataset>& dataset,
                               std::optional<int64_t> text_bytes) {
    const std::array<int64_t, 4> bounds = plan_.split->bounds(dataset->index().documents());
    std::array<std::shared_ptr<const RowSource>, 3> parts;
    for (size_t i = 0; i < parts.size(); ++i) {
      if (!plan_.split->has(i)) continue;
      constexpr std::array kNames = {"training", "validation", "the test"};
      if (bounds[i] == bounds[i + 1]) {
        throw UsageError(format("{}: the split leaves none of its {} documents for {}; change data.split",
                                spec.path, dataset->index().documents(), kNames[i]));
      }
      const auto part = dataset->part(bounds[i], bounds[i + 1]);
      const auto bytes = bytes_of_part(text_bytes, part->index().tokens(), dataset->index().tokens());
      parts[i] = rows_of(spec, part, bytes, i == 0 ? RowUse::training : RowUse::validation);
    }
    return {parts[0], parts[1], parts[2]};
  }

  OpenedSource open_text(const SourceSpec& spec, double fraction, RowUse use) {
    if (tokenizer_ == nullptr) {
      throw UsageError(format(
          "{} is text, but no tokenizer is configured: name a tokenizer, or an indexed dataset", spec.path));
    }
    const Records records = open_records({spec.path}, *tokenizer_, record_options(plan_, spec));
    const TextSource& source = *records.source;
    if (const std::string& skipped = source.skipped(); !skipped.empty()) {
      notes.push_back(format("{}: {}", spec.path, skipped));
    }
    const auto cached = [&](double held_out) {
      const TokenizeOptions tokenizing{.workers = plan_.workers,
                                       .split = {.fraction = held_out, .seed = plan_.seed},
                                       .max_records = records.max_records,
                                       .deduplicate = plan_.deduplicate,
                                       .max_bad_records = plan_.max_bad_records};
      return open_cached_dataset(source, *records.format, tokenizing, plan_.cache_dir, progress_);
    };
    const CachedDataset split = cached(fraction);
    report_ = split.report;
    for (const std::string& note : loss_notes(split.report))
      notes.push_back(format("{}: {}", spec.path, note));
    if (fraction == 0.0) return {packed(spec, split, use)};
    if (!makes_a_row(split.train_statistics) || !makes_a_row(split.validation_statistics))
      return hold_out_rows(packed(spec, cached(0.0), use), spec, fraction);
    return {packed(spec, split, use),
            rows_of(spec, split.validation, split.validation_statistics.text_bytes, RowUse::validation)};
  }

  static OpenedSource last_rows_held_out(const std::shared_ptr<const RowSource>& all, int64_t held_out) {
    const int64_t rows = all->rows() - held_out;
    return {std::make_shared<RowRange>(all, 0, rows), std::make_shared<RowRange>(all, rows, held_out)};
  }

  /// For sources of which no document, or nearly all of the text, would be held out otherwise.
  OpenedSource hold_out_rows(const std::shared_ptr<const RowSource>& all, const SourceSpec& spec,
                             double fraction) {
    const int64_t rows = all->rows();
    if (rows < 2) {
      throw UsageError(format(
          "{} makes only one row of {} tokens, so none can be held out for validation: use more text, a "
          "smaller training.seq_len, or set data.validation_fraction = 0",
          spec.path, plan_.seq_len));
    }
    const auto wanted = std::llround(fraction * static_cast<double>(rows));
    const int64_t held_out = std::clamp<int64_t>(wanted, 1, rows - 1);
    notes.push_back(
        format("{} has too few documents to hold out {}% of them for validation; its last {} of {} rows "
               "are held out instead",
               spec.path, 100.0 * fraction, held_out, rows));
    return last_rows_held_out(all, held_out);
  }

  /// The training part. Throws UsageError in terms of the text if that is too small for one row.
  std::shared_ptr<const RowSource> packed(const SourceSpec& spec, const CachedDataset& cached, RowUse use) {
    const DatasetStatistics& statistics = cached.train_statistics;
    if (!makes_a_row(statistics)) {
      throw UsageError(format(
          "{}: its {} documents have {} tokens, too few for one row of {} tokens and its last label: use "
          "more text or a smaller training.seq_len",
          spec.path, statistics.documents, statistics.tokens, plan_.seq_len));
    }
    return rows_of(spec, cached.train, statistics.text_bytes, use);
  }

  /// Whether documents of these sizes fill, or with padding make, at least one row.
  bool makes_a_row(const DatasetStatistics& sizes) const {
    const bool is_cut = plan_.packing == Packing::concat || plan_.packing == Packing::hard;
    return is_cut ? sizes.tokens > plan_.seq_len : sizes.documents > 0;
  }

  std::shared_ptr<const RowSource> rows_of(const SourceSpec& spec,
                                           std::shared_ptr<const IndexedDataset> dataset,
                                           std::optional<int64_t> text_bytes, RowUse use) {
    std::shared_ptr<const RowSource> rows = packed_rows(spec, std::move(dataset), text_bytes, use);
    for (const std::string& note : account_notes(*rows->account(), noun_of(spec), plan_.seq_len))
      notes.push_back(format("{}: {}", name_of_source(spec), note));
    return rows;
  }

  std::shared_ptr<const RowSource> packed_rows(const SourceSpec& spec,
                                               std::shared_ptr<const IndexedDataset> dataset,
                                               std::optional<int64_t> text_bytes, RowUse use) {
    if (plan_.packing == Packing::concat)
      return std::make_shared<ConcatRows>(std::move(dataset), plan_.seq_len, vocab_size(), text_bytes,
                                          name_of_source(spec));
    if (plan_.packing == Packing::preset && use == RowUse::training)
      return preset_rows(spec, std::move(dataset), text_bytes);
    // A preset describes the training data only.
    const Packing packing = plan_.packing == Packing::preset ? Packing::best_fit : plan_.packing;
    return std::make_shared<PackedRows>(std::move(dataset), plan_.seq_len, vocab_size(), packing, plan_.seed,
                                        text_bytes, name_of_source(spec), kind());
  }

  DocumentKind kind() const {
    if (plan_.records.pairs) return DocumentKind::pair;
    return plan_.records.unpaired ? DocumentKind::answer : DocumentKind::text;
  }

  std::string_view noun_of(const SourceSpec& spec) const {
    if (plan_.records.pairs) return "pair";
    if (plan_.records.unpaired) return "judged answer";
    return holds_conversations(spec) ? "conversation" : "document";
  }

  std::shared_ptr<const RowSource> preset_rows(const SourceSpec& spec,
                                               std::shared_ptr<const IndexedDataset> dataset,
                                               std::optional<int64_t> text_bytes) {
    PackTable table = read_pack_table(plan_.preset, document_lengths(dataset->index()), plan_.seq_len);
    if (table.unused_tokens > 0) {
      notes.push_back(format("{}: {} of {} tokens are not used", plan_.preset.string(),
                             with_thousands(table.unused_tokens), with_thousands(dataset->index().tokens())));
    }
    const std::string identity = "preset " + content_hash(std::as_bytes(std::span(table.row_begins))) +
                                 content_hash(std::as_bytes(std::span(table.pieces)));
    return std::make_shared<PackedRows>(std::move(dataset), plan_.seq_len, vocab_size(), std::move(table),
                                        identity, text_bytes, name_of_source(spec));
  }

  const DataPlan& plan_;
  TokenizeResult report_;  ///< of the source that is being opened
  const Tokenizer* tokenizer_;
  const TokenizeProgressFunction& progress_;
};

void check(const DataPlan& plan) {
  if (!(plan.validation_fraction >= 0.0 && plan.validation_fraction < 1.0)) {
    throw UsageError(
        format("validation fraction {}: it must be at least 0 and less than 1", plan.validation_fraction));
  }
  if (plan.validation_fraction > 0.0 && !plan.validation_sources.empty()) {
    throw UsageError(
        format("both a validation fraction ({}) and {} validation source(s) are given: choose one",
               plan.validation_fraction, plan.validation_sources.size()));
  }
  if (plan.packing == Packing::preset && leaves_of(plan.sources).size() > 1) {
    throw UsageError(format("a preset has the rows of one source, but {} are given: use another packing",
                            leaves_of(plan.sources).size()));
  }
  if (plan.seq_len < 1) throw UsageError(format("sequence length {}: it must be at least 1", plan.seq_len));
}

}  // namespace

void require_split(const DataPlan& plan, const SourceSpec& spec) {
  if (!plan.split || (!spec.open && is_indexed(spec))) return;
  throw UsageError(
      format("{} is not a finished data set, and data.split divides those only; set data.validation_fraction "
             "instead, or build a data set with data build",
             name_of_source(spec)));
}

bool is_indexed(const SourceSpec& spec) {
  if (spec.format != "auto") return is_token_format(spec.format);
  const std::string extension = fs::path(spec.path).extension().string();
  return extension == ".bin" || extension == ".idx" || names_pair_beside_folder(spec.path) ||
         (!fs::exists(spec.path) && fs::exists(idx_path(spec.path)));
}

bool holds_conversations(const SourceSpec& spec) {
  return !spec.dataset.empty() || find_chat_layout(spec.format).has_value();
}

std::vector<SourceSpec> leaves_of(const std::vector<SourceSpec>& sources) {
  std::vector<SourceSpec> leaves;
  for (const SourceSpec& spec : sources) {
    if (spec.sources.empty()) {
      leaves.push_back(spec);
    } else {
      std::ranges::copy(leaves_of(spec.sources), std::back_inserter(leaves));
    }
  }
  return leaves;
}

RecordOptions record_options(const DataPlan& plan, const SourceSpec& spec) {
  RecordOptions options = plan.records;
  options.format = spec.format;
  options.field = spec.field;
  options.loss_on = spec.loss_on;
  options.dataset = spec.dataset;
  return options;
}

DataSet open_data(const DataPlan& plan, const Tokenizer* tokenizer,
                  const TokenizeProgressFunction& progress) {
  check(plan);
  SourceOpener opener(plan, tokenizer, progress);
  HeldOut held_out;
  const std::vector<SourceEntry> train =
      opener.open_all(plan.sources, plan.validation_fraction, RowUse::training, held_out);
  const std::vector<std::string> paths = std::move(opener.paths);
  const std::vector<TokenizeResult> reports = std::move(opener.reports);
  if (!plan.validation_sources.empty()) {
    HeldOut none;
    opener.names.clear();
    held_out.validation = opener.open_all(plan.validation_sources, 0.0, RowUse::validation, none);
  }
  DataSet data;
  data.notes = std::move(opener.notes);
  data.train = RowStream::mixture(train,
                                  {.seed = plan.seed,
                                   .shuffle = plan.shuffle,
                                   .weights_by = plan.weights_by,
                                   .temperature = plan.temperature},
                                  plan.steps);
  data.sources = source_statistics(*data.train, paths);
  for (size_t i = 0; i < data.sources.size(); ++i) {
    data.sources[i].dropped = reports.at(i).dropped;
    data.sources[i].cut = reports.at(i).cut;
  }
  if (!held_out.validation.empty()) data.validation = RowStream::one_pass(held_out.validation);
  if (!held_out.test.empty()) data.test = RowStream::one_pass(held_out.test);
  return data;
}

std::vector<std::string> describe_sources(const DataSet& data) {
  return statistics_table(data.sources);
}

}  // namespace stepforge
