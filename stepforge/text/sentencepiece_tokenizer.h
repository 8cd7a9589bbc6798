// SPDX-License-Identifier: Apache-2.0
// A tokenizer of the SentencePiece library: its .model file, its ids, its text.
#pragma once

#include <memory>
#include <string>

#include "stepforge/text/tokenizer.h"

namespace stepforge {

/// `model` is the content of a .model file, `source` names it in errors. Text is encoded without the tokens that begin
/// and end it; control tokens spelled out in a text are text. Saves as tokenizer.model. Throws FormatError if the
/// library refuses the file.
std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(std::string model, const std::string& source);

}  // namespace stepforge
