// SPDX-License-Identifier: Apache-2.0
#include "stepforge/nn/context.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

namespace stepforge {

namespace {
at::Tensor view_of(std::vector<int32_t>& values) {
  return at::from_blob(values.data(), {static_cast<int64_t>(values.size())},
                       at::TensorOptions().dtype(at::kInt));
}
}  // namespace

BatchTensors::BatchTensors(Batch host_batch)
    : host(std::move(host_batch)),
      tokens(view_of(host.tokens)),
      positions(view_of(host.positions)),
      labels(view_of(host.labels)),
      row_ids(at::empty({token_count()}, at::kLong)),
      row_positions(at::empty({token_count()}, at::kInt)) {
  auto* ids = row_ids.data_ptr<int64_t>();
  auto* positions_in_row = row_positions.data_ptr<int32_t>();
  for (int64_t token = 0; token < token_count(); ++token) {
    ids[token] = static_cast<int64_t>(host.row_ids.at(static_cast<size_t>(token / host.seq_len)));
    positions_in_row[token] = static_cast<int32_t>(token % host.seq_len);
  }
}

}  // namespace stepforge
