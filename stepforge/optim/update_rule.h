// SPDX-License-Identifier: Apache-2.0
// How optimizers change parameters: a rule for each kind of catalog/optimizer_kinds.h.
#pragma once

#include <functional>
#include <span>
#include <string>

#include <ATen/core/Tensor.h>

#include "stepforge/catalog/optimizer_kinds.h"
#include "stepforge/config/config.h"
#include "stepforge/kernels/adamw.h"

namespace stepforge {

/// The hyper-parameters of a group of parameters. Each optimizer reads those that it needs.
struct UpdateOptions {
  std::string optimizer = "adamw";  ///< the name of its kind
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

/// What an update works on: an interval [n] of elements, or a matrix [rows, columns] if OptimizerKind::by_matrix.
struct UpdateArguments {
  const at::Tensor& parameter;        ///< fp32; changed
  const at::Tensor& gradient;         ///< fp32, of the same shape; before grad_scale
  std::span<const at::Tensor> slots;  ///< of OptimizerKind::slots, shaped alike; changed
  const UpdateScalars& scalars;       ///< if `finite` is 0, it must change nothing
};

/// Must treat every element (or block of a slot) alike wherever an interval begins, so that all layouts compute the same.
struct UpdateRule : std::function<void(const UpdateArguments& arguments)> {
  using function::function;
};

/// The rule of `kind`. Throws UsageError if it has none.
UpdateRule make_update_rule(const OptimizerKind& kind, const UpdateOptions& options,
                            const Extensions& extensions = {});

}  // namespace stepforge
