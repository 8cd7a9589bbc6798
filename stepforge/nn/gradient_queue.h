// SPDX-License-Identifier: Apache-2.0
// Gradients of weights that are written later than those of inputs, which a pipeline passes on first (zero
// bubble schedules: Qi et al., arXiv:2401.10241).
#pragma once

#include <deque>
#include <functional>

#include <ATen/core/Tensor.h>

namespace stepforge {

class Parameter;

/// Writes a contribution into `gradient`, or adds it if `accumulate`. It owns the tensors that it reads.
using GradientWrite = std::function<void(const at::Tensor& gradient, bool accumulate)>;

/// Pending writes of one backward of a block. Sums have the bits of writes at once if the queues of several
/// micro-batches run in the order in which their backwards would have been.
class GradientQueue {
 public:
  /// `parameter` must stay where it is until run().
  void add(Parameter& parameter, GradientWrite write);
  /// Does the writes in the order in which they were added; frees what each of them holds when it is done.
  void run();
  bool empty() const { return pending_.empty(); }

 private:
  struct Pending {
    Parameter* parameter = nullptr;
    GradientWrite write;
  };
  std::deque<Pending> pending_;
};

}  // namespace stepforge
