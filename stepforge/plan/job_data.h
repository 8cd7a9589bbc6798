// SPDX-License-Identifier: Apache-2.0
// From a configuration to the input of the model: tokenizer and rows. No tensors: the trainer and `stepforge
// data show` see the same rows.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>

#include "stepforge/base/log.h"
#include "stepforge/config/config.h"
#include "stepforge/data/data_plan.h"
#include "stepforge/text/tokenizer.h"

namespace stepforge {

/// The tokenizer of config.tokenizer. Type bpe without a path is trained on the text sources and kept in
/// config.run_dir/tokenizer, where a later start finds it. `progress` is called while the text is read and
/// tokens are learnt. Throws what reading the text throws.
std::unique_ptr<Tokenizer> job_tokenizer(
    const Config& config, Logger& log, const std::function<void()>& progress = [] {});

/// The vocabulary that training would find, without training a tokenizer: model.vocab_size, or that of the
/// tokenizer.
int64_t planned_vocabulary(const Config& config);

/// Where a run keeps its tokenizer.
std::filesystem::path run_tokenizer_folder(const Config& config);

/// The tokenizer of a finished or running run at config.run_dir: the copy in its folder, so that it does not
/// matter where a relative tokenizer.path led. nullptr if it has none, as a run that was imported without
/// tokenizer files.
std::unique_ptr<Tokenizer> tokenizer_of_run(const Config& config);

/// The data section as the data room takes it; `vocab_size` is for synthetic rows.
DataPlan data_plan(const Config& config, int64_t vocab_size);

}  // namespace stepforge
