// SPDX-License-Identifier: Apache-2.0
// A tokenizer of the SentencePiece library: its .model file, its ids, its text.
#pragma once

#include <memory>
#include <string>

#include "stepforge/text/model_tokens.h"
#include "stepforge/text/tokenizer.h"

namespace stepforge {

/// Text is encoded without the tokens that begin and end it. Saves the model as tokenizer.model. `files` holds the .model
/// file under `name` and the files beside it, which are saved again unchanged. If a tokenizer_config.json,
/// special_tokens_map.json or added_tokens.json is among them, the tokens that they list, and the model's control symbols,
/// are found in a text; new tokens have ids after the model's pieces. As in transformers 5, a text gets bos or eos only if
/// add_bos_token or add_eos_token says so, and no space is put after an added token unless "legacy" is true.
/// Throws FormatError naming the file in `folder`.
std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(TokenizerFiles files, const std::string& name,
                                                        const std::string& folder);

/// A model alone; `source` names it in errors. Control tokens spelled out in a text are text.
std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(std::string model, const std::string& source);

}  // namespace stepforge
