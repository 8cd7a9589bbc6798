#include "stepforge/data/data_plan.h"

#include <cmath>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/data/dataset_cache.h"
#include "stepforge/data/packing.h"
#include "stepforge/data/synthetic.h"

namespace stepforge {

namespace fs = std::filesystem;

namespace {

struct OpenedSource {
  std::shared_ptr<const SampleSource> train;
  std::shared_ptr<const SampleSource> validation;  ///< null unless a share is held out
};

bool is_indexed(const SourceSpec& spec) {
  if (spec.format != "auto") return spec.format == "bin";
  const std::string extension = fs::path(spec.path).extension().string();
  return extension == ".bin" || extension == ".idx" ||
         (!fs::exists(spec.path) && fs::exists(idx_path(spec.path)));
}

/// Opens one source after the other, all under the same plan.
class SourceOpener {
 public:
  SourceOpener(const DataPlan& plan, const Tokenizer* tokenizer, const TokenizeProgressFunction& progress)
      : plan_(plan), tokenizer_(tokenizer), progress_(progress) {}

  /// `fraction` of it is held out.
  OpenedSource open(const SourceSpec& spec, double fraction) const {
    if (spec.format == "synthetic") return open_synthetic(fraction);
    if (spec.path.empty())
      throw UsageError("a data source without a path: name a file, a folder or an indexed dataset");
    return is_indexed(spec) ? open_indexed(spec, fraction) : open_text(spec, fraction);
  }

 private:
  int64_t vocab_size() const { return tokenizer_ != nullptr ? tokenizer_->vocab_size() : plan_.vocab_size; }

  OpenedSource open_synthetic(double fraction) const {
    const int64_t held_out = std::llround(fraction * static_cast<double>(plan_.synthetic.samples));
    SyntheticOptions options{.seed = plan_.seed,
                             .vocab_size = vocab_size(),
                             .seq_len = plan_.seq_len,
                             .samples = plan_.synthetic.samples - held_out,
                             .document_length = plan_.synthetic.document_length};
    OpenedSource opened;
    opened.train = std::make_shared<SyntheticSource>(options);
    if (held_out > 0) {
      options.first_sample = options.samples;
      options.samples = held_out;
      opened.validation = std::make_shared<SyntheticSource>(options);
    }
    return opened;
  }

  OpenedSource open_indexed(const SourceSpec& spec, double fraction) const {
    if (fraction > 0.0) {
      throw UsageError(
          format("{} is a finished dataset: a validation fraction of {} cannot be held out of it; name a "
                 "validation source, or split it with data build --validation-fraction",
                 spec.path, fraction));
    }
    auto dataset = std::make_shared<IndexedDataset>(spec.path);
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
    return {std::make_shared<PackedSource>(std::move(dataset), plan_.seq_len, vocab_size(), text_bytes),
            nullptr};
  }

  OpenedSource open_text(const SourceSpec& spec, double fraction) const {
    if (tokenizer_ == nullptr) {
      throw UsageError(format(
          "{} is text, but no tokenizer is configured: name a tokenizer, or an indexed dataset", spec.path));
    }
    const TextSource source({.paths = {spec.path},
                             .format = parse_text_format(spec.format),
                             .mode = parse_document_mode(plan_.documents),
                             .field = spec.field});
    const TokenizeOptions options{.workers = plan_.workers,
                                  .split = {.fraction = fraction, .seed = plan_.seed}};
    const CachedDataset cached =
        open_cached_dataset(source, *tokenizer_, options, plan_.cache_dir, progress_);
    OpenedSource opened;
    opened.train = packed(spec, cached.train, cached.train_statistics, cached, "training");
    if (cached.validation) {
      opened.validation = packed(spec, cached.validation, cached.validation_statistics, cached, "validation");
    }
    return opened;
  }

  /// Says it in the terms of the text if a part is too small for one row.
  std::shared_ptr<const SampleSource> packed(const SourceSpec& spec,
                                             const std::shared_ptr<const IndexedDataset>& dataset,
                                             const DatasetStatistics& statistics, const CachedDataset& cached,
                                             std::string_view part) const {
    if (statistics.tokens <= plan_.seq_len) {
      const int64_t documents = cached.train_statistics.documents + cached.validation_statistics.documents;
      throw UsageError(format(
          "{}: {} of its {} documents with {} tokens are for {}, too few for one row of {} tokens and its "
          "last label: use more text, a smaller training.seq_len, another validation fraction, or shorter "
          "documents (\"line\" or \"paragraph\" instead of \"{}\")",
          spec.path, statistics.documents, documents, statistics.tokens, part, plan_.seq_len,
          plan_.documents));
    }
    return std::make_shared<PackedSource>(dataset, plan_.seq_len, vocab_size(), statistics.text_bytes);
  }

  const DataPlan& plan_;
  const Tokenizer* tokenizer_;
  const TokenizeProgressFunction& progress_;
};

void check(const DataPlan& plan) {
  if (!(plan.validation_fraction >= 0.0 && plan.validation_fraction < 1.0)) {
    throw UsageError(
        format("a validation fraction of {}: it lies between 0 and 1, 1 excluded", plan.validation_fraction));
  }
  if (plan.validation_fraction > 0.0 && !plan.validation_sources.empty()) {
    throw UsageError(format("both a validation fraction ({}) and {} validation source(s): choose one",
                            plan.validation_fraction, plan.validation_sources.size()));
  }
  if (plan.seq_len < 1)
    throw UsageError(format("a sequence length of {}: at least 1 token a row is needed", plan.seq_len));
}

}  // namespace

DataSet open_data(const DataPlan& plan, const Tokenizer* tokenizer,
                  const TokenizeProgressFunction& progress) {
  check(plan);
  const SourceOpener opener(plan, tokenizer, progress);
  std::vector<WeightedSource> train;
  std::vector<std::shared_ptr<const SampleSource>> validation;
  for (const auto& spec : plan.sources) {
    OpenedSource opened = opener.open(spec, plan.validation_fraction);
    train.push_back({std::move(opened.train), spec.weight});
    if (opened.validation) validation.push_back(std::move(opened.validation));
  }
  for (const auto& spec : plan.validation_sources) validation.push_back(opener.open(spec, 0.0).train);
  DataSet data;
  data.train = RowStream::mixture(std::move(train), plan.seed, plan.shuffle);
  if (!validation.empty()) data.validation = RowStream::one_pass(std::move(validation));
  return data;
}

}  // namespace stepforge
