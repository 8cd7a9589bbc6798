// SPDX-License-Identifier: Apache-2.0
// What the files beside a tokenizer.json say about its tokens, merged as transformers 5 merges them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace stepforge {

/// The tokenizer files of a folder by their path in it, with their unchanged contents.
using TokenizerFiles = std::map<std::string, std::string>;

/// A token with the flags of an AddedToken (definition.h), as a file lists it.
struct ListedToken {
  std::string content;
  std::optional<int64_t> id;  ///< the id that the file gives it
  std::string where;          ///< file and place, for errors
  bool special = false;
  bool normalized = false;
  bool single_word = false;
  bool lstrip = false;
  bool rstrip = false;
  /// Names a token that another file must define: eos_token or bos_token as a plain string in tokenizer_config.json.
  bool is_reference = false;
};

struct ModelTokens {
  /// In the order in which they are added, with flags that replace those of tokenizer.json. From added_tokens_decoder of
  /// tokenizer_config.json.
  std::vector<ListedToken> listed;
  /// Added, after those, if nothing before has their content: added_tokens.json, the tokens with a role, and further special
  /// tokens.
  std::vector<ListedToken> further;
  /// "eos_token", "pad_token", "image_token", ...: the content of each token with a role.
  std::map<std::string, std::string> roles;
  /// Whether a token with a role is special whatever tokenizer.json says; otherwise only those in `listed` are.
  bool roles_are_special = false;
};

/// Merges tokenizer_config.json, special_tokens_map.json and added_tokens.json. As in transformers, added_tokens_decoder
/// overrides the other two files, and without it special_tokens_map.json wins. `folder` stands in errors. Throws
/// FormatError naming file and key for what is malformed.
ModelTokens read_model_tokens(const TokenizerFiles& files, const std::string& folder);

}  // namespace stepforge
