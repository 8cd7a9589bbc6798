// SPDX-License-Identifier: Apache-2.0
// The key and the coordinates by which a call draws what it drops. Not public.
#pragma once

#include "stepforge/kernels/dropout_add.h"
#include "stepforge/nn/call_entries.h"

namespace stepforge {

struct DropoutSite {
  DropoutKey key;
  TokenCoords coords;

  /// Of `rows` tokens: all of the micro-batch, or this rank's slice. With p = 0 nothing is drawn.
  DropoutSite(const CallRun& run, double p, uint64_t site, int64_t rows) {
    if (p == 0.0) return;
    key = dropout_key_of_site(run.context.dropout_key, site);
    const BatchTensors& batch = *run.context.batch;
    coords = {batch.row_ids, batch.row_positions};
    if (rows == batch.token_count()) return;
    const ShardRange slice = run.resources.tensor.parallel.part_of(batch.token_count());
    coords = {batch.row_ids.slice(0, slice.begin, slice.end),
              batch.row_positions.slice(0, slice.begin, slice.end)};
  }
};

}  // namespace stepforge
