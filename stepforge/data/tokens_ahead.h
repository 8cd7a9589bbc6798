// SPDX-License-Identifier: Apache-2.0
// Labels of tokens further ahead, for multi-token prediction.
#pragma once

#include "stepforge/data/batch.h"

namespace stepforge {

/// `batch` with the label, and its weight, that the token `ahead` >= 0 tokens later in the same document has; a token
/// without such a one has an ignored label. So labels are never of another document, and only those count that count
/// in `batch`. Throws Error for a part of rows (context parallelism), which lacks tokens.
Batch labels_ahead(Batch batch, int64_t ahead);

}  // namespace stepforge
