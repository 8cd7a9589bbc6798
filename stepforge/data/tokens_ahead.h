// SPDX-License-Identifier: Apache-2.0
// The tokens and labels further ahead, for multi-token prediction.
#pragma once

#include "stepforge/data/batch.h"

namespace stepforge {

/// Sets batch.ahead for depths 1 to `depths`: at depth k each token has the token, the label and its weight that the token
/// k later in the same document has. Where that has no such token, there is kNoToken and an ignored label. So nothing is
/// of another document, and only those labels count that count in `batch`. Throws Error for a part of rows, which lacks
/// tokens: call it before take_part().
void add_tokens_ahead(Batch& batch, int64_t depths);

}  // namespace stepforge
