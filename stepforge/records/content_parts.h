// SPDX-License-Identifier: Apache-2.0
// Contents of messages that are lists of parts, as OpenAI has them: [{"type": "text", "text": "..."}].
#pragma once

#include "stepforge/base/json.h"
#include "stepforge/text/chat_template.h"

namespace stepforge {

/// Whether the template writes a content that is a text; one for images and text may read lists of parts only.
bool writes_text_content(const ChatTemplate& chat_template);

/// Replaces contents that are lists of parts by their texts, end to end. Throws FormatError naming message and part for a part
/// that is not text.
void join_parts(Json& messages);

}  // namespace stepforge
