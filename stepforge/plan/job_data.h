// SPDX-License-Identifier: Apache-2.0
// Builds the tokenizer and the data plan of a configuration, without tensors. The trainer and `stepforge data
// show` both use these functions.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>

#include "stepforge/base/error.h"
#include "stepforge/base/log.h"
#include "stepforge/config/load.h"
#include "stepforge/data/data_plan.h"
#include "stepforge/text/tokenizer.h"

namespace stepforge {

/// The tokenizer of config.tokenizer. Type bpe without a path is trained on the text sources and saved in
/// config.run_dir/tokenizer, from which later starts load it. `progress` is called while text is read and
/// merges are learned. Throws UsageError if there is no text to train on, FormatError if a source is
/// malformed or not UTF-8.
std::unique_ptr<Tokenizer> job_tokenizer(
    const Config& config, Logger& log, const std::function<void()>& progress = [] {});

/// Turns FormatError into UsageError: unusable text or tokenizer files are an error of the configuration.
template <typename Read>
auto reading_input(const Read& read) {
  try {
    return read();
  } catch (const FormatError& malformed) {
    throw UsageError(malformed.what());
  }
}

/// The tokenizer if it need not be trained: bytes, tokenizer.path, or the one in the run's folder. Null if it does not
/// exist yet.
std::unique_ptr<Tokenizer> known_tokenizer(const Config& config);

/// The vocabulary size of a run, without training a tokenizer: model.vocab_size, or that of the tokenizer. Throws UsageError
/// if the tokenizer belongs to another model and is not named.
int64_t planned_vocabulary(const Config& config);
int64_t planned_vocabulary(const Config& config, const Tokenizer* known);

/// Throws UsageError if the tokenizer has more tokens than model.vocab_size, unless that is 0.
void check_vocabulary(const LoadedConfig& loaded, int64_t tokens);

/// Refuses sources, their records' formats and the chat template as training does, without reading texts: files are found
/// and finished data sets are opened. `tokenizer` may be null. Throws what open_data() throws.
void check_sources(const Config& config, const Tokenizer* tokenizer);

/// The folder in which a run keeps its tokenizer.
std::filesystem::path run_tokenizer_folder(const Config& config);

/// Copies the tokenizer and the chat template of config.data to the run's folder, so that this alone is enough to
/// evaluate the run, export it and chat with it. A byte tokenizer without a template is not copied.
void save_run_tokenizer(const Config& config, const Tokenizer& tokenizer);

/// data.filter as rules.
TextFilterRules text_filter_rules(const DataFilterConfig& filter);

/// The data section as a DataPlan. Only synthetic rows use `vocab_size`.
DataPlan data_plan(const Config& config, int64_t vocab_size);

/// Whether a source of the training data has this layout, by its format or by what its dataset_info.json says. Throws what reading
/// that throws.
bool reads_layout(const DataConfig& data, ChatLayout layout);

}  // namespace stepforge
