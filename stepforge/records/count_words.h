// SPDX-License-Identifier: Apache-2.0
// Counts the words of text sources, to train a tokenizer.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>

#include "stepforge/records/text_source.h"
#include "stepforge/text/word_counts.h"

namespace stepforge {

/// Adds the words of the documents of `source`, in order, to `counter` until it has counted `max_bytes` of
/// text. `progress` is called before each batch of text. Throws what reading the source throws.
void count_words(const TextSource& source, WordCounter& counter,
                 int64_t max_bytes = std::numeric_limits<int64_t>::max(),
                 const std::function<void()>& progress = {});

}  // namespace stepforge
