// SPDX-License-Identifier: Apache-2.0
// Converts tokenizers in other formats to a tokenizer.json.
#pragma once

#include <string>
#include <string_view>

namespace stepforge {

/// Folders of GPT-2's time: vocab.json, merges.txt and, if not "", tokenizer_config.json, read as transformers'
/// GPT2Tokenizer reads them. `folder` names them in errors. Throws FormatError for other tokenizer classes and for
/// malformed files.
std::string tokenizer_json_of_gpt2(std::string_view vocab, std::string_view merges, std::string_view config,
                                   const std::string& folder);

/// A .tiktoken file: a line for each token, base64 and rank. The pattern and the special tokens are those of the
/// encoding that `path` is named after (r50k_base, p50k_base, cl100k_base, o200k_base), or "pat_str" and
/// "special_tokens" ({"text": id}) of `config`, the tokenizer_config.json beside it. Pairs that make the same token
/// are merged in the order of transformers' converter. Throws FormatError naming the line.
std::string tokenizer_json_of_tiktoken(std::string_view text, std::string_view config,
                                       const std::string& path);

}  // namespace stepforge
