// SPDX-License-Identifier: Apache-2.0
// Scanners for the patterns of most tokenizers. They find the same pieces as SplitPattern, several times as fast as the
// regular expression.
#pragma once

#include <cstddef>
#include <string_view>

namespace stepforge {

/// The pattern of GPT-4 and Llama 3: contractions, words with one leading character, up to three digits,
/// punctuation, line breaks, spaces.
inline constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

/// The pattern of Qwen 2 and later: that of Llama 3 with single digits.
inline constexpr std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

/// The pattern of GPT-2, which Hugging Face's ByteLevel pre-tokenizer uses when use_regex is true.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

/// The pattern of GPT-4o: words that begin with capitals stay apart.
inline constexpr std::string_view kGpt4oPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

/// Length of the first piece of `text` from `position` on, as SplitPattern::piece_length() finds it.
using PieceScanner = size_t (*)(std::string_view text, size_t position);

/// The pattern that users call gpt2, llama3, qwen or o200k; anything else is a regular expression already. Throws
/// UsageError for a plain word, which is a name misspelled rather than an expression.
std::string_view named_pattern(std::string_view name);

/// The scanner for exactly this pattern, or null.
PieceScanner scanner_for(std::string_view pattern);

}  // namespace stepforge
