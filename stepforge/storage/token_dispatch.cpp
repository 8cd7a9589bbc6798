// SPDX-License-Identifier: Apache-2.0
#include "stepforge/storage/token_dispatch.h"

#include <numeric>

#include <ATen/ops/empty.h>

namespace stepforge {

DispatchedRows dispatch_tokens(DispatchMethod method, const TokenChoice& choice, Communicator& ranks) {
  switch (method) {
    case DispatchMethod::all_to_all:
      return dispatch_all_to_all(choice, ranks);
    case DispatchMethod::all_gather:
      return dispatch_all_gather(choice, ranks);
  }
  return {};
}

at::Tensor experts_of_rows(const at::Tensor& counts) {
  const auto* came = counts.const_data_ptr<int64_t>();
  at::Tensor experts = at::empty({std::accumulate(came, came + counts.numel(), int64_t{0}), 1},
                                 counts.options().dtype(at::kInt));
  auto* next = experts.mutable_data_ptr<int32_t>();
  for (int64_t i = 0; i < counts.numel(); ++i)
    for (int64_t row = 0; row < came[i]; ++row) *next++ = static_cast<int32_t>(i % counts.size(1));
  return experts;
}

}  // namespace stepforge
