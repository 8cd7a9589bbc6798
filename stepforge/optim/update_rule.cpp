// SPDX-License-Identifier: Apache-2.0
#include "stepforge/optim/update_rule.h"

#include "stepforge/base/error.h"
#include "stepforge/kernels/lion.h"
#include "stepforge/kernels/muon.h"
#include "stepforge/kernels/sgd.h"
#include "stepforge/storage/unit_store.h"

namespace stepforge {

namespace {

class AdamWRule : public UpdateRule {
 public:
  explicit AdamWRule(const UpdateOptions& options)
      : options_{options.lr, options.beta1, options.beta2, options.eps, options.weight_decay} {}
  void update(const at::Tensor& parameter, const at::Tensor& gradient, std::span<const at::Tensor> slots,
              const UpdateScalars& scalars) const override {
    adamw_update(parameter, gradient, slots[0], slots[1], 0, parameter.numel(), options_, scalars);
  }

 private:
  AdamWOptions options_;
};

class LionRule : public UpdateRule {
 public:
  explicit LionRule(const UpdateOptions& options)
      : options_{options.lr, options.beta1, options.beta2, options.weight_decay} {}
  void update(const at::Tensor& parameter, const at::Tensor& gradient, std::span<const at::Tensor> slots,
              const UpdateScalars& scalars) const override {
    lion_update(parameter, gradient, slots[0], options_, scalars);
  }

 private:
  LionOptions options_;
};

class SgdRule : public UpdateRule {
 public:
  explicit SgdRule(const UpdateOptions& options)
      : options_{options.lr, options.momentum, options.weight_decay, options.nesterov} {}
  void update(const at::Tensor& parameter, const at::Tensor& gradient, std::span<const at::Tensor> slots,
              const UpdateScalars& scalars) const override {
    sgd_update(parameter, gradient, slots.empty() ? at::Tensor() : slots[0], options_, scalars);
  }

 private:
  SgdOptions options_;
};

class MuonRule : public UpdateRule {
 public:
  explicit MuonRule(const UpdateOptions& options)
      : options_{options.lr,
                 options.momentum,
                 options.weight_decay,
                 options.nesterov,
                 options.muon_scale == MuonScale::rms,
                 options.muon_iterations,
                 scalar_type(options.muon_compute)} {}
  bool by_matrix() const override { return true; }
  void update(const at::Tensor& parameter, const at::Tensor& gradient, std::span<const at::Tensor> slots,
              const UpdateScalars& scalars) const override {
    muon_update(parameter, gradient, slots[0], options_, scalars);
  }

 private:
  MuonOptions options_;
};

}  // namespace

std::shared_ptr<const UpdateRule> make_update_rule(const UpdateOptions& options) {
  switch (options.optimizer) {
    case OptimizerName::adamw:
      return std::make_shared<AdamWRule>(options);
    case OptimizerName::lion:
      return std::make_shared<LionRule>(options);
    case OptimizerName::sgd:
      return std::make_shared<SgdRule>(options);
    case OptimizerName::muon:
      return std::make_shared<MuonRule>(options);
  }
  throw Error("no update rule for this optimizer");
}

}  // namespace stepforge
