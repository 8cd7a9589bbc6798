// SPDX-License-Identifier: Apache-2.0
// How an optimizer changes parameters: one rule for each kind of optimizer.
#pragma once

#include <memory>
#include <span>

#include <ATen/core/Tensor.h>

#include "stepforge/config/config.h"
#include "stepforge/kernels/adamw.h"

namespace stepforge {

/// The hyper-parameters of a group of parameters. An optimizer reads those that it has.
struct UpdateOptions {
  OptimizerName optimizer = OptimizerName::adamw;
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;
  double momentum = 0.0;
  bool nesterov = false;
  MuonScale muon_scale = MuonScale::rms;
  int64_t muon_iterations = 5;
  DType muon_compute = DType::bf16;

  bool operator==(const UpdateOptions&) const = default;
};

class UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  /// Whether update() takes a whole matrix [rows, columns], a sub-tensor of a parameter; otherwise it takes any flat
  /// interval of elements.
  virtual bool by_matrix() const { return false; }
  /// Changes `parameter` and `slots`, which have its shape. All are fp32.
  virtual void update(const at::Tensor& parameter, const at::Tensor& gradient,
                      std::span<const at::Tensor> slots, const UpdateScalars& scalars) const = 0;
};

std::shared_ptr<const UpdateRule> make_update_rule(const UpdateOptions& options);

}  // namespace stepforge
