// SPDX-License-Identifier: Apache-2.0
#include "stepforge/optim/update_rule.h"

#include <array>
#include <string_view>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/kernels/adamw_8bit.h"
#include "stepforge/kernels/lion.h"
#include "stepforge/kernels/muon.h"
#include "stepforge/kernels/sgd.h"
#include "stepforge/storage/unit_store.h"

namespace stepforge {

namespace {

AdamWOptions adamw_options(const UpdateOptions& options) {
  return {options.lr, options.beta1, options.beta2, options.eps, options.weight_decay};
}

/// With moments in fp32 or bf16.
UpdateRule adamw_rule(const UpdateOptions& options, const Extensions& /*extensions*/) {
  return [adamw = adamw_options(options)](const UpdateArguments& a) {
    adamw_update(a.parameter, a.gradient, a.slots[0], a.slots[1], 0, a.parameter.numel(), adamw, a.scalars);
  };
}

UpdateRule adamw_8bit_rule(const UpdateOptions& options, const Extensions& /*extensions*/) {
  return [adamw = adamw_options(options)](const UpdateArguments& a) {
    adamw_8bit_update(a.parameter, a.gradient, {a.slots[0], a.slots[2]}, {a.slots[1], a.slots[3]}, adamw,
                      a.scalars);
  };
}

UpdateRule lion_rule(const UpdateOptions& options, const Extensions& /*extensions*/) {
  const LionOptions lion{options.lr, options.beta1, options.beta2, options.weight_decay};
  return
      [lion](const UpdateArguments& a) { lion_update(a.parameter, a.gradient, a.slots[0], lion, a.scalars); };
}

UpdateRule sgd_rule(const UpdateOptions& options, const Extensions& /*extensions*/) {
  const SgdOptions sgd{options.lr, options.momentum, options.weight_decay, options.nesterov};
  return [sgd](const UpdateArguments& a) {
    sgd_update(a.parameter, a.gradient, a.slots.empty() ? at::Tensor() : a.slots[0], sgd, a.scalars);
  };
}

UpdateRule muon_rule(const UpdateOptions& options, const Extensions& /*extensions*/) {
  const MuonOptions muon{options.lr,
                         options.momentum,
                         options.weight_decay,
                         options.nesterov,
                         options.muon_scale == MuonScale::rms,
                         options.muon_iterations,
                         scalar_type(options.muon_compute)};
  return
      [muon](const UpdateArguments& a) { muon_update(a.parameter, a.gradient, a.slots[0], muon, a.scalars); };
}

constexpr auto kRules = std::to_array<std::pair<std::string_view, decltype(OptimizerKind::rule)>>({
    {"adamw", adamw_rule},
    {"adamw_bf16", adamw_rule},
    {"adamw_8bit", adamw_8bit_rule},
    {"lion", lion_rule},
    {"sgd", sgd_rule},
    {"muon", muon_rule},
});

}  // namespace

UpdateRule make_update_rule(const OptimizerKind& kind, const UpdateOptions& options,
                            const Extensions& extensions) {
  if (kind.rule != nullptr) return kind.rule(options, extensions);
  for (const auto& [name, rule] : kRules) {
    if (name == kind.name) return rule(options, extensions);
  }
  throw UsageError(format(
      "optimizer.name = \"{}\": the plug-in that registers it must set OptimizerKind::rule", kind.name));
}

}  // namespace stepforge
