// SPDX-License-Identifier: Apache-2.0
// Opens the streams of rows that a job trains on and is validated with.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "stepforge/data/packing.h"
#include "stepforge/data/row_stream.h"
#include "stepforge/data/source_statistics.h"
#include "stepforge/data/split_ratios.h"
#include "stepforge/dataset/tokenize.h"
#include "stepforge/records/records.h"

namespace stepforge {

/// One entry of a list of sources: a source, or a group of entries.
struct SourceSpec {
  /// File, folder, pattern, or prefix of an indexed dataset; unused for "synthetic" and groups.
  std::string path{};
  double weight = 1.0;
  /// That of records (RecordOptions::format), "bin" (an indexed dataset or llm.c's token files), "tokens_u16", "tokens_u32" (token
  /// files without a header) or "synthetic".
  std::string format = "auto";
  std::string field = "text";         ///< name of the text field of a JSON line
  std::string loss_on = "assistant";  ///< of chat data: what counts in the loss
  std::string dataset{};              ///< of a dataset_info.json that `path` names
  std::string name{};                 ///< empty: the data set, else the path, or "synthetic"
  std::optional<double> epochs{};     ///< see SourceEntry
  bool concat = false;                ///< see SourceEntry
  std::vector<SourceSpec> sources{};  ///< of a group
  /// Opens the source of a plug-in, with the tokenizer of the run (null without one) and the size of its vocabulary; of
  /// other sources not set.
  std::function<std::shared_ptr<const RowSource>(const Tokenizer* tokenizer, int64_t vocab_size)> open{};
};

/// Whether the source is a finished data set: by its format, or for "auto" by its name.
bool is_indexed(const SourceSpec& spec);

/// Whether its documents are conversations or instructions, by its format.
bool holds_conversations(const SourceSpec& spec);

/// The sources of a list, in the order of the tree, without the groups.
std::vector<SourceSpec> leaves_of(const std::vector<SourceSpec>& sources);

struct SyntheticPlan {
  int64_t rows = 65536;         ///< rows in an epoch
  int64_t document_length = 0;  ///< mean, in tokens; 0 makes each row one document
};

struct DataPlan {
  std::vector<SourceSpec> sources;
  /// Sources of the validation set. Cannot be combined with validation_fraction.
  std::vector<SourceSpec> validation_sources;
  /// Fraction of the documents (synthetic: of the rows) that is held out for validation, in [0, 1). If a
  /// source has too few documents for that, its last rows are held out.
  double validation_fraction = 0.0;
  /// Instead of a fraction, for finished data sets: which of their documents are for what.
  std::optional<SplitRatios> split{};
  bool deduplicate = false;     ///< drop documents whose text occurred before in the same source
  int64_t max_bad_records = 0;  ///< of a source; so many malformed records are left out, one more is an error
  RecordOptions records;        ///< what all sources share; format, field and loss_on are each source's own
  Packing packing = Packing::concat;
  std::filesystem::path preset;  ///< the folder of Packing::preset
  StepRows steps;                ///< of the training data
  int64_t seq_len = 0;
  uint64_t seed = 0;
  bool shuffle = true;
  ShareOf weights_by = ShareOf::rows;
  double temperature = 0.0;  ///< see MixtureOptions
  std::filesystem::path cache_dir;
  int workers = 0;         ///< tokenizing threads; 0 = all cores
  int64_t vocab_size = 0;  ///< used if there is no tokenizer
  SyntheticPlan synthetic;
};

struct DataSet {
  std::shared_ptr<const RowStream> train;       ///< endless
  std::shared_ptr<const RowStream> validation;  ///< one pass; null if the plan has no validation data
  std::shared_ptr<const RowStream> test;        ///< one pass; null unless the plan's split has a part for it
  std::vector<std::string> notes;               ///< messages to the user about the sources, a line each
  std::vector<SourceStatistics> sources;        ///< of train, in the order of its source_names()
};

/// Throws UsageError if the plan divides its data sets and cannot divide this one, which is to be trained on.
void require_split(const DataPlan& plan, const SourceSpec& spec);

/// How the records of a source are read.
RecordOptions record_options(const DataPlan& plan, const SourceSpec& spec);

/// A table of the sources of `data.train`, a line each.
std::vector<std::string> describe_sources(const DataSet& data);

/// Opens all sources; text that is not in the cache yet is tokenized first. `tokenizer` may be null if all
/// sources are indexed datasets or synthetic. Throws UsageError if the plan is impossible, and whatever
/// reading the sources throws.
DataSet open_data(const DataPlan& plan, const Tokenizer* tokenizer,
                  const TokenizeProgressFunction& progress = {});

}  // namespace stepforge
