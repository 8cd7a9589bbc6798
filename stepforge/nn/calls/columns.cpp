// SPDX-License-Identifier: Apache-2.0
#include "stepforge/modelspec/calls/columns.h"

#include "stepforge/nn/call_entries.h"

namespace stepforge {

namespace {

/// [N, a], [N, b] and [N, a + b]: from the columns of the whole to its parts, or back.
void copy_columns(const at::Tensor& whole, const at::Tensor& first, const at::Tensor& second, bool to_parts) {
  int64_t begin = 0;
  for (const at::Tensor& part : {first, second}) {
    const at::Tensor columns = whole.narrow(1, begin, part.size(1));
    if (to_parts)
      part.copy_(columns);
    else
      columns.copy_(part);
    begin += part.size(1);
  }
}

void split(const CallRun& run) {
  copy_columns(run.operands[0], run.written[0], run.written[1], /*to_parts=*/true);
}

void split_backward(const CallRun& run) {
  copy_columns(run.written[0], run.gradients[0], run.gradients[1], /*to_parts=*/false);
}

void concat(const CallRun& run) {
  copy_columns(run.written[0], run.operands[0], run.operands[1], /*to_parts=*/false);
}

void concat_backward(const CallRun& run) {
  copy_columns(run.gradients[0], run.written[0], run.written[1], /*to_parts=*/true);
}

}  // namespace

extern const CallEntry kSplitEntry = {&kSplit, split, split_backward};
extern const CallEntry kConcatEntry = {&kConcat, concat, concat_backward};

}  // namespace stepforge
