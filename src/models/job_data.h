// From a configuration to what the model is fed: tokenizer and rows. No tensors: the trainer and `stepforge
// data show` see the same rows.
#pragma once

#include <filesystem>
#include <memory>

#include "base/log.h"
#include "config/config.h"
#include "data/data_plan.h"
#include "text/tokenizer.h"

namespace stepforge {

/// The tokenizer of config.tokenizer. Type bpe without a path is trained on the text sources and kept in
/// config.run_dir/tokenizer, where a later start finds it. Throws what reading the text throws.
std::unique_ptr<Tokenizer> job_tokenizer(const Config& config, Logger& log);

/// The data section as the data room wants it; `vocab_size` for synthetic rows.
DataPlan data_plan(const Config& config, int64_t vocab_size);

}  // namespace stepforge
