// SPDX-License-Identifier: Apache-2.0
// Answers that exact models train on.
#pragma once

#include <filesystem>

namespace stepforge {

/// Writes JSON lines of format "preference". By the bytes tokenizer, which ends a text with one token more, each pair has 14 to 16
/// tokens, so that it has a row of 16 to 24 tokens for itself, and its better answer kExactAnswer. Throws what write_file_atomic() throws.
void write_exact_pairs(const std::filesystem::path& file);

/// The same of answers that are judged alone, format "unpaired_preference", in documents of 14 tokens: also with the answers of other
/// records each has a row for itself.
void write_exact_judged_answers(const std::filesystem::path& file);

}  // namespace stepforge
