// SPDX-License-Identifier: Apache-2.0
// A batch as a person reads it.
#pragma once

#include <cstdint>
#include <string>

#include "stepforge/data/batch.h"
#include "stepforge/text/tokenizer.h"

namespace stepforge {

struct ShowOptions {
  bool colour = false;     ///< escape codes: tokens in alternating shades, ignored labels dimmed
  int64_t max_tokens = 0;  ///< tokens of each row in the table above the text; 0 = all
};

/// For each row a table of tokens, positions and labels, then its text with the borders of tokens and
/// documents.
std::string render_batch(const Batch& batch, const Tokenizer& tokenizer, const ShowOptions& options);

}  // namespace stepforge
