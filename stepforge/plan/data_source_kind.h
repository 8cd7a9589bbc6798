// SPDX-License-Identifier: Apache-2.0
// Data sources of plug-ins.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "stepforge/base/registry.h"
#include "stepforge/config/config.h"
#include "stepforge/data/row_source.h"
#include "stepforge/text/tokenizer.h"

namespace stepforge {

/// The arguments with which a data source is opened.
struct DataSourceRequest {
  const Config& config;
  const DataSourceConfig& source;  ///< the entry of data.sources or data.validation
  const Tokenizer* tokenizer;      ///< of the run; null only if a program opens data without one
  int64_t vocab_size;              ///< of the tokenizer, or of the model
};

/// A value of data.sources.kind. Its rows have config.training.seq_len tokens, and are the same in every run and on every
/// rank.
struct DataSourceKind {
  static constexpr std::string_view kKind = "data source";
  std::string_view name;
  std::function<std::shared_ptr<const RowSource>(const DataSourceRequest& request)> open;
};

}  // namespace stepforge
