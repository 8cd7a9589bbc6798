// SPDX-License-Identifier: Apache-2.0
// One sample of a source as the model sees it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/data/data_plan.h"
#include "stepforge/data/show.h"
#include "stepforge/records/preference.h"
#include "stepforge/text/tokenizer.h"

namespace stepforge {

struct Sample {
  std::string source;  ///< its path
  int64_t number = 0;  ///< in the source, counted from 0
  std::string record;  ///< the text of the file, JSON with indentation; "" for a finished data set
  std::optional<PreferencePair> pair;  ///< of preference data, which have no tokens
  std::vector<int32_t> tokens;         ///< those that are used
  std::vector<uint8_t> counted;        ///< [tokens] 1 if the token counts in the loss
  std::vector<std::string> notes;      ///< why it was cut, dropped or refused, a line each
};

/// The source of `sources` that `name` means: its number from 0, its name, its path, the name of that or its data set. Throws
/// UsageError that lists all if there is none or more than one.
const SourceSpec& find_source(const std::vector<SourceSpec>& sources, const std::string& name);

/// Reads sample `number`. A malformed record is a note, not an exception. Throws UsageError if there is no such sample or
/// the source is synthetic, and what opening the source throws.
Sample read_sample(const DataPlan& plan, const SourceSpec& spec, int64_t number, const Tokenizer& tokenizer);

/// The record, the text that the model reads, and a table of tokens, of which options.max_tokens are listed. In the text,
/// what is learned is in colour, or between ">>" and "<<"; in the table a column says it.
std::string render_sample(const Sample& sample, const Tokenizer& tokenizer, const ShowOptions& options);

}  // namespace stepforge
