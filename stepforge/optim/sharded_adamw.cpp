// SPDX-License-Identifier: Apache-2.0
#include "stepforge/optim/sharded_adamw.h"

#include <ATen/ops/zeros.h>

#include "stepforge/base/error.h"

namespace stepforge {

ShardedAdamW::ShardedAdamW(const ShardedModule& module, const AdamWOptions& options)
    : ShardedAdamW(module, [options](const std::string&) { return options; }) {}

ShardedAdamW::ShardedAdamW(const ShardedModule& module, const Choose& options)
    : parameters_(sharded_parameters(*module.module())) {
  if (!module.is_sharded()) {
    throw UsageError("ShardedAdamW: the module is not sharded; call fully_shard before making its optimizer");
  }
  for (const FsdpParamRef& parameter : parameters_) {
    if (parts_.empty() || parts_.back().parameters != parameter.part) {
      parts_.push_back({parameter.part, {}, {}, UnitAdamW(parameter.part->store())});
    }
    parts_.back().options.push_back(options(parameter.name));
  }
  for (Part& part : parts_) part.steps = at::zeros({static_cast<int64_t>(part.options.size())}, at::kLong);
}

void ShardedAdamW::step(double lr_factor) {
  for (Part& part : parts_) {
    part.parameters->finish_reduction();
    part.parameters->settle_gather();
    if (update(part, lr_factor)) part.parameters->masters_changed();
  }
}

bool ShardedAdamW::update(Part& part, double lr_factor) {
  FsdpParamGroup& parameters = *part.parameters;
  const size_t count = part.options.size();
  auto* steps = part.steps.data_ptr<int64_t>();
  const auto has_gradient = [&](size_t i) { return parameters.local(i).grad().defined(); };
  at::Tensor gradient;
  for (size_t first = 0; first < count;) {
    if (!has_gradient(first)) {
      ++first;
      continue;
    }
    const int64_t made = steps[first];
    size_t last = first + 1;
    while (last < count && has_gradient(last) && steps[last] == made &&
           part.options[first] == part.options[last]) {
      ++last;
    }
    if (!gradient.defined()) {
      gradient = parameters.gradient();
      part.moments.allocate();
    }
    AdamWOptions options = part.options[first];
    options.lr *= lr_factor;
    part.moments.update(first, last, gradient, {options, made + 1, /*grad_scale=*/1.0});
    for (size_t i = first; i < last; ++i) ++steps[i];
    first = last;
  }
  return gradient.defined();
}

std::vector<const ShardedAdamW::Part*> ShardedAdamW::state() {
  std::vector<const Part*> parts;
  for (Part& part : parts_) {
    if (part.parameters->any_trained()) part.moments.allocate();
    if (part.moments.slots()[0].defined()) parts.push_back(&part);
  }
  return parts;
}

}  // namespace stepforge
