// SPDX-License-Identifier: Apache-2.0
// Post-processors of tokenizer.json: they put special tokens around an encoded text.
#pragma once

#include <cstdint>

#include "stepforge/base/json_reader.h"
#include "stepforge/text/tokenizer.h"

namespace stepforge {

/// Reads TemplateProcessing, BertProcessing, RobertaProcessing, ByteLevel (which adds none) and Sequence. Ids
/// must be below `vocab_size`. Throws FormatError naming file and component for others.
SpecialTokens read_post_processor(const JsonReader& processor, int32_t vocab_size);

}  // namespace stepforge
