// SPDX-License-Identifier: Apache-2.0
// A small valid tokenizer definition that tests change, and helpers to load definitions.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "stepforge/base/json.h"
#include "stepforge/text/pipeline_tokenizer.h"
#include "stepforge/text/tokenizer_json.h"
#include "tests/support/paths.h"

namespace stepforge::testing {

/// The bytes, the merges "a b", "ab c", "b c" as ids 256 to 258, and "<|endoftext|>" as 259; Llama 3 pattern.
inline Json good_definition() {
  const std::vector<TokenPair> merges = {token_pair('a', 'b'), token_pair(256, 'c'), token_pair('b', 'c')};
  // "abc" and "bc" are both new strings, so ids follow the order of the merges.
  return Json::parse(tokenizer_json(merges, kLlama3Pattern));
}

inline std::unique_ptr<Tokenizer> tokenizer_of(const std::string& json) {
  TokenizerFiles files;
  files["tokenizer.json"] = json;
  return std::make_unique<PipelineTokenizer>(std::move(files), "test");
}

inline std::unique_ptr<Tokenizer> tokenizer_of(const Json& definition) {
  return tokenizer_of(definition.dump());
}

inline std::filesystem::path golden_folder(const std::string& name) {
  return source_dir() / "tests/golden/text" / name;
}

}  // namespace stepforge::testing
