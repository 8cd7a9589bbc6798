// SPDX-License-Identifier: Apache-2.0
#include "stepforge/modelspec/calls/exchange.h"

#include "stepforge/base/error.h"
#include "stepforge/nn/call_entries.h"

namespace stepforge {

namespace {

void exchange_tensors(ExchangeKind kind, const at::Tensor& in, const at::Tensor& out,
                      const TensorExchange& ranks) {
  switch (kind) {
    case ExchangeKind::sum:
      if (!out.is_same(in)) out.copy_(in);
      return ranks.sum(out);
    case ExchangeKind::gather:
      return ranks.gather(in, out);
    case ExchangeKind::sum_slice:
      return ranks.sum_slice(in, out);
    case ExchangeKind::slice:
      out.copy_(in.narrow(0, out.size(0) * ranks.parallel.part_after(0), out.size(0)));
      return;
    default:
      throw Error("exchange: tensor parallelism has no such exchange");
  }
}

void exchange(const CallRun& run) {
  exchange_tensors(*attributes_of<ExchangeAttributes>(run.call).forward, run.operands[0], run.written[0],
                   run.resources.tensor);
}

void exchange_backward(const CallRun& run) {
  exchange_tensors(*attributes_of<ExchangeAttributes>(run.call).backward, run.gradients[0], run.written[0],
                   run.resources.tensor);
}

}  // namespace

extern const CallEntry kExchangeEntry = {&kExchange, exchange, exchange_backward};

}  // namespace stepforge
