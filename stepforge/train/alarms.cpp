// SPDX-License-Identifier: Apache-2.0
#include "stepforge/train/alarms.h"

#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include <ATen/ops/zeros.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/random.h"
#include "stepforge/comm/gather.h"
#include "stepforge/layout/parallel_dims.h"
#include "stepforge/storage/gradient_norm.h"
#include "stepforge/storage/tensor_parts.h"
#include "stepforge/train/trainer.h"
#include "stepforge/train/training_services.h"

namespace stepforge {

namespace {

/// Sums of hashes of the elements of a unit, each with its place: equal for equal values, however they are
/// sharded.
struct Digest {
  uint64_t all = 0;    ///< of this rank's shard
  uint64_t whole = 0;  ///< of its elements of tensors that are not divided

  void add(const Digest& other) {
    all += other.all;
    whole += other.whole;
  }
};

/// The digest of the elements of one slice of a tensor of `shape`.
uint64_t digest_of(const ShardSlice& part, const std::vector<int64_t>& shape, const at::Tensor& shard) {
  const int64_t columns = part.slice.sizes.back();
  const at::Tensor wide = part_of(shard, part).to(at::device(at::kCPU).dtype(at::kFloat));
  const auto* values = wide.const_data_ptr<float>();
  uint64_t sum = 0;
  for (int64_t i = 0; i < part.elements(); ++i) {
    int64_t rest = i / columns;
    int64_t index = part.slice.offsets.back() + i % columns;
    int64_t stride = shape.back();
    for (size_t d = shape.size() - 1; d-- > 0;) {
      index += (part.slice.offsets[d] + rest % part.slice.sizes[d]) * stride;
      rest /= part.slice.sizes[d];
      stride *= shape[d];
    }
    sum += mix_bits(mix_bits(static_cast<uint64_t>(index)) + std::bit_cast<uint32_t>(values[i]));
  }
  return sum;
}

Digest digest_of(const UnitStore& unit) {
  Digest digest;
  const at::Tensor values = unit.master_values();
  for (size_t p = 0; p < unit.spec().parameters.size(); ++p) {
    const ParameterSpec& parameter = unit.spec().parameters[p];
    uint64_t sum = 0;
    for (const ShardSlice& part : unit.slices(p)) sum += digest_of(part, parameter.shape, values);
    sum *= 2 * p + 1;  // by parameter
    const bool copied = unit.spec().mesh == UnitMesh::rows && !parameter.is_sliced();
    digest.add({sum, copied ? sum : 0});
  }
  return digest;
}

/// Compares the digests of all ranks of a job.
class CopyCheck {
 public:
  CopyCheck(Trainer& trainer, const std::vector<Digest>& own)
      : step_(trainer.state.step),
        mesh_(trainer.job.layout.dims, trainer.place.world_size),
        tied_(trainer.job.pipeline.tied_unit()),
        units_(own.size()),
        digests_(gather_values(*trainer.all_ranks, own)) {}

  /// Throws Error naming the ranks. `names`: of the units.
  void check(const std::vector<std::string>& names) const {
    for (size_t u = 0; u < units_; ++u) {
      for (int rank = 0; rank < mesh_.world_size(); ++rank) {
        const int replica = mesh_.first("dp_replicate", rank);
        if (of(replica, u).all != of(rank, u).all) fail(names[u], replica, rank, "replicas");
        const int part = mesh_.first("tp", rank);
        if (mesh_.coordinate("fsdp", rank) != 0) continue;
        if (of_shards(part, u).whole != of_shards(rank, u).whole)
          fail(names[u], part, rank, "copies of tensors that tensor parallelism does not divide");
        check_tied(names, u, rank);
      }
    }
  }

 private:
  const Digest& of(int rank, size_t unit) const {
    return digests_[static_cast<size_t>(rank) * units_ + unit];
  }
  /// The digest of all shards of the group of `rank`.
  Digest of_shards(int rank, size_t unit) const {
    Digest sum;
    for (const int shard : mesh_.group("fsdp", rank)) sum.add(of(shard, unit));
    return sum;
  }
  /// The stages of a pipeline that hold the tied unit.
  void check_tied(const std::vector<std::string>& names, size_t unit, int rank) const {
    if (names[unit] != tied_.name || mesh_.coordinate("pp", rank) != tied_.owner) return;
    const int copy = mesh_.group("pp", rank).at(static_cast<size_t>(tied_.copy));
    if (of_shards(rank, unit).all != of_shards(copy, unit).all)
      fail(names[unit], rank, copy, "copies of a tied tensor");
  }
  void fail(const std::string& unit, int first, int second, const char* what) const {
    throw Error(
        format("step {}: the weights of {} differ between rank {} and rank {}, which hold {}: a kernel, the "
               "transport or the memory of one of them is wrong; resume from a checkpoint before this step",
               step_, unit, first, second, what));
  }

  int64_t step_;
  Mesh mesh_;
  TiedUnit tied_;
  size_t units_;
  std::vector<Digest> digests_;
};

class Alarms : public Callback {
 public:
  std::string_view name() const override { return "alarms"; }

  void step_end(Trainer& trainer) override {
    if (trainer.all_ranks == nullptr) return;
    if (!norm_checked_ && trainer.last_step.updated) {
      norm_checked_ = true;
      check_norm(trainer);
    }
    const int64_t freq = trainer.config.debug.check_copies_freq;
    if (freq == 0 || trainer.state.step % freq != 0) return;
    std::vector<Digest> own(trainer.job.model().units.size());  // 0 for units of other stages
    std::vector<std::string> names;
    for (const UnitSpec& unit : trainer.job.model().units) names.push_back(unit.name);
    for (size_t u = 0; u < trainer.store->size(); ++u) {
      const UnitStore& unit = trainer.store->unit(u);
      own.at(static_cast<size_t>(unit.layout().number)) = digest_of(unit);
    }
    CopyCheck(trainer, own).check(names);
  }

 private:
  /// Over the world instead of the groups of the step: every element counts once for each replica.
  static void check_norm(Trainer& trainer) {
    const NormType type = norm_type(trainer.config.training.norm_type);
    const at::Tensor terms = at::zeros({}, at::TensorOptions(at::kDouble).device(trainer.store->device()));
    gradient_norm_terms(*trainer.store, type, NormExchange::ranks, /*shards=*/nullptr, terms);
    join_over_shards(trainer.all_ranks.get(), type, terms);
    if (type != NormType::inf) terms.div_(trainer.job.layout.dims.dp_replicate);
    norm_of_terms(type, terms, terms);
    const auto expected = terms.item<double>();
    const double norm = trainer.last_step.grad_norm;
    constexpr double kTolerance = 1e-9;  // fp64 sums in another order
    if (std::abs(norm - expected) <= kTolerance * expected) return;
    throw Error(
        format("step {}: the gradient norm is {}, but the shards of all {} ranks together have {}: some "
               "elements are counted twice or not at all",
               trainer.state.step, norm, trainer.place.world_size, expected));
  }

  bool norm_checked_ = false;
};

}  // namespace

std::unique_ptr<Callback> make_alarms() {
  return std::make_unique<Alarms>();
}

}  // namespace stepforge
