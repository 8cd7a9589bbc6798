// clip_grad_norm of sharded_adamw.h.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <span>

#include <ATen/core/grad_mode.h>

#include "base/error.h"
#include "base/format.h"
#include "optim/sharded_adamw.h"

namespace stepforge {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Sums of |element|^p, or their largest, in fp64.
class NormSum {
 public:
  explicit NormSum(double type) : type_(type) {}

  void add(const at::Tensor& gradient) {
    const at::Tensor flat = gradient.contiguous();
    const auto* values = flat.const_data_ptr<float>();
    for (int64_t i = 0; i < flat.numel(); ++i) join(power(std::abs(static_cast<double>(values[i]))));
  }
  void join(double other) {
    if (type_ != kInfinity) {
      sum_ += other;
    } else if (!(other <= sum_)) {  // also if it is NaN
      sum_ = std::isnan(sum_) ? sum_ : other;
    }
  }
  double sum() const { return sum_; }
  double norm() const { return type_ == kInfinity || type_ == 1.0 ? sum_ : root(); }

 private:
  double power(double value) const {
    if (type_ == 2.0) return value * value;
    return type_ == 3.0 ? value * value * value : value;
  }
  double root() const { return type_ == 2.0 ? std::sqrt(sum_) : std::cbrt(sum_); }

  double type_;
  double sum_ = 0.0;
};

/// The sums of all ranks that share the parts, joined in their order.
NormSum over_shards(const DataGroups& groups, const NormSum& own, double type) {
  if (groups.shard().ranks == 1) return own;
  const double part = own.sum();
  std::vector<double> all(static_cast<size_t>(groups.shard().ranks));
  groups.across_shards()->all_gather(std::as_bytes(std::span(&part, 1)),
                                     std::as_writable_bytes(std::span(all)));
  NormSum sum(type);
  for (const double other : all) sum.join(other);
  return sum;
}

}  // namespace

double clip_grad_norm(const ShardedModule& module, double max_norm, double norm_type,
                      bool error_if_nonfinite) {
  if (norm_type != 1.0 && norm_type != 2.0 && norm_type != 3.0 && norm_type != kInfinity) {
    throw UsageError(format("norm type {}: choose 1, 2, 3 or infinity", norm_type));
  }
  if (!(max_norm >= 0.0)) throw UsageError(format("max_norm must be 0 or more, not {}", max_norm));
  module.wait_for_reductions();
  const at::NoGradGuard no_grad;
  // Parts that are cut over the same ranks are summed together; replicated ones are the same on all.
  std::vector<std::pair<const DataGroups*, NormSum>> sums;
  std::vector<at::Tensor> gradients;
  const auto sum_over = [&](const DataGroups* groups) -> NormSum& {
    const auto found = std::find_if(sums.begin(), sums.end(), [&](auto& sum) { return sum.first == groups; });
    return found != sums.end() ? found->second : sums.emplace_back(groups, NormSum(norm_type)).second;
  };
  for (const ShardedParameter& parameter : sharded_parameters(*module.module())) {
    NormSum& sum = sum_over(&parameter.part->store().groups());
    if (!parameter.local().grad().defined()) continue;
    sum.add(parameter.local().grad());
    gradients.push_back(parameter.local().grad());
  }
  NormSum total(norm_type);
  for (const auto& [groups, sum] : sums) total.join(over_shards(*groups, sum, norm_type).sum());
  const double norm = total.norm();
  if (error_if_nonfinite && !std::isfinite(norm)) {
    throw Error(format("the gradients' norm of type {} is {}; they are left as they are", norm_type, norm));
  }
  const double coefficient = max_norm / (norm + 1e-6);
  if (coefficient < 1.0) {
    for (at::Tensor& gradient : gradients) gradient.mul_(coefficient);
  }
  return norm;
}

}  // namespace stepforge
