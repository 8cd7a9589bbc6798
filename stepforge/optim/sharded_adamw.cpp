#include "stepforge/optim/sharded_adamw.h"

#include <ATen/ops/zeros.h>

#include "stepforge/base/error.h"
#include "stepforge/kernels/adamw.h"

namespace stepforge {

namespace {

bool same(const ShardedAdamWOptions& a, const ShardedAdamWOptions& b) {
  return a.lr == b.lr && a.beta1 == b.beta1 && a.beta2 == b.beta2 && a.eps == b.eps &&
         a.weight_decay == b.weight_decay;
}

}  // namespace

ShardedAdamW::ShardedAdamW(const ShardedModule& module, const ShardedAdamWOptions& options)
    : ShardedAdamW(module, [options](const std::string&) { return options; }) {}

ShardedAdamW::ShardedAdamW(const ShardedModule& module, const Choose& options)
    : parameters_(fsdp_param_group(*module.module())) {
  if (!module.is_sharded()) {
    throw UsageError("ShardedAdamW: the module is not sharded; call fully_shard before making its optimizer");
  }
  for (const FsdpParamRef& parameter : parameters_) {
    if (parts_.empty() || parts_.back().parameters != parameter.part) {
      parts_.push_back({.parameters = parameter.part, .options = {}, .steps = {}, .slots = {}});
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
    const ShardedAdamWOptions& group = part.options[first];
    size_t last = first + 1;
    while (last < count && has_gradient(last) && steps[last] == made && same(group, part.options[last])) {
      ++last;
    }
    if (!gradient.defined()) {
      gradient = parameters.gradient();
      allocate_slots(part);
    }
    const AdamWSettings settings{group.lr * lr_factor, group.beta1, group.beta2, group.eps,
                                 group.weight_decay,   made + 1,    1.0};
    const ShardRange range = parameters.store().local_range(first, last);
    adamw_update(parameters.store().master(), gradient, part.slots[0], part.slots[1], range.begin, range.end,
                 settings);
    for (size_t i = first; i < last; ++i) ++steps[i];
    first = last;
  }
  return gradient.defined();
}

void ShardedAdamW::allocate_slots(Part& part) {
  for (at::Tensor& slot : part.slots) {
    if (!slot.defined()) slot = at::zeros({part.parameters->store().shard_size()}, at::kFloat);
  }
}

std::vector<ShardedAdamW::State> ShardedAdamW::state() {
  std::vector<State> all;
  for (Part& part : parts_) {
    if (!part.slots[0].defined() && !part.parameters->any_trained()) continue;
    allocate_slots(part);
    all.push_back({part.parameters, part.slots, part.steps});
  }
  return all;
}

}  // namespace stepforge
