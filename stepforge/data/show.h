// SPDX-License-Identifier: Apache-2.0
// Prints a batch as text.
#pragma once

#include <cstdint>
#include <string>

#include "stepforge/data/batch.h"
#include "stepforge/text/tokenizer.h"

namespace stepforge {

struct ShowOptions {
  bool colour = false;     ///< use escape codes: tokens in alternating colours, ignored labels dimmed
  int64_t max_tokens = 0;  ///< how many tokens of each row the table lists; 0 = all
};

/// For each row a table of tokens, positions and labels, then its text with the boundaries of tokens and
/// documents.
std::string render_batch(const Batch& batch, const Tokenizer& tokenizer, const ShowOptions& options);

}  // namespace stepforge
