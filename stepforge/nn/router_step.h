// SPDX-License-Identifier: Apache-2.0
// What the routers of a model exchange with a training step.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include <ATen/core/Tensor.h>

#include "stepforge/modelspec/tensor_parallel.h"
#include "stepforge/nn/context.h"

namespace stepforge {

/// What the router of one layer reports about a micro-batch. Tokens whose label is ignored do not count.
struct RouterReport {
  at::Tensor row_sums;           ///< [rows, router_columns(E)] fp64 (kernels/router.h); backward reads them
  at::Tensor losses;             ///< [2] fp64: balance and z, sums over tokens without weight and scale
  at::Tensor tokens_per_expert;  ///< [E] int64
  int64_t layer = -1;
};

/// One micro-batch of a training step. It must outlive the backward of the micro-batch.
class RouterStep {
 public:
  /// `scale`: that of the loss of the step (kernels/scalars.h), which the losses of routers have too.
  /// `on_report` is called with each report; may be null. `tensor`: whose slice of the tokens routers get, if there are
  /// slices.
  RouterStep(at::Tensor scale, const BatchTensors& batch,
             std::function<void(const RouterReport&)> on_report = nullptr, const TensorParallel& tensor = {});

  const at::Tensor& scale() const { return scale_; }
  /// Into which the tokens of routers are divided. Of a slice that does not consist of whole rows they are parts of rows,
  /// equally long.
  int64_t rows() const { return rows_; }
  /// [tokens of routers] fp32: what each token counts, the weight of its label.
  const at::Tensor& token_weights() const { return token_weights_; }

  /// Whether `layer` has reported: a forward that is run again in backward does not report again.
  bool has_report(int64_t layer) const { return reports_.contains(layer); }
  void report(int64_t layer, RouterReport report) {
    if (on_report_) on_report_(report);
    reports_.emplace(layer, std::move(report));
  }
  const RouterReport& report_of(int64_t layer) const { return reports_.at(layer); }
  const std::map<int64_t, RouterReport>& reports() const { return reports_; }

 private:
  at::Tensor scale_;
  int64_t rows_;
  at::Tensor token_weights_;
  std::function<void(const RouterReport&)> on_report_;
  std::map<int64_t, RouterReport> reports_;
};

}  // namespace stepforge
