#include "optim/sharded_adamw.h"

#include <ATen/ops/zeros.h>

#include "base/error.h"
#include "kernels/adamw.h"
#include "parallel/unit_runtime.h"

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
    : parameters_(sharded_parameters(*module.module())) {
  if (!module.is_sharded()) {
    throw UsageError("ShardedAdamW: the module is not sharded; call fully_shard before making its optimizer");
  }
  for (const ShardedParameter& parameter : parameters_) {
    if (parts_.empty() || parts_.back().parameters != parameter.part) {
      parts_.push_back({.parameters = parameter.part, .options = {}, .slots = {}});
    }
    parts_.back().options.push_back(options(parameter.name));
  }
}

void ShardedAdamW::step(double lr_factor) {
  ++steps_;
  for (Part& part : parts_) {
    ShardedParameters& parameters = *part.parameters;
    parameters.finish_reduction();
    parameters.settle_gather();
    const size_t count = part.options.size();
    bool is_updated = false;
    const auto has_gradient = [&](size_t i) { return parameters.local(i).grad().defined(); };
    for (size_t first = 0; first < count;) {
      if (!has_gradient(first)) {
        ++first;
        continue;
      }
      size_t last = first + 1;
      while (last < count && has_gradient(last) && same(part.options[first], part.options[last])) ++last;
      for (at::Tensor& slot : part.slots) {
        if (!slot.defined()) slot = at::zeros({parameters.store().shard_size()}, at::kFloat);
      }
      const ShardedAdamWOptions& group = part.options[first];
      const AdamWSettings settings{group.lr * lr_factor, group.beta1, group.beta2, group.eps,
                                   group.weight_decay,   steps_,      1.0};
      const ShardRange range = parameters.store().held(first, last);
      adamw_update(parameters.store().master(), parameters.gradient(), part.slots[0], part.slots[1],
                   range.begin, range.end, settings);
      first = last;
      is_updated = true;
    }
    if (is_updated) parameters.masters_changed();
  }
}

std::vector<ShardedAdamW::Moments> ShardedAdamW::moments() {
  std::vector<Moments> all;
  for (Part& part : parts_) {
    if (!part.slots[0].defined() && !part.parameters->any_trained()) continue;
    for (at::Tensor& slot : part.slots) {
      if (!slot.defined()) slot = at::zeros({part.parameters->store().shard_size()}, at::kFloat);
    }
    all.push_back({part.parameters, part.slots});
  }
  return all;
}

}  // namespace stepforge
