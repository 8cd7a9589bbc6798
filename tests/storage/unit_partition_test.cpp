// SPDX-License-Identifier: Apache-2.0
// Every partition of a unit over every number of ranks gathers, reduces and joins to the unit of one rank.
#include <numeric>

#include <gtest/gtest.h>

#include "stepforge/base/format.h"
#include "stepforge/comm/recording.h"
#include "stepforge/storage/unit_store.h"
#include "tests/support/rank_groups.h"
#include "tests/support/rank_threads.h"

namespace stepforge::testing {
namespace {

UnitSpec odd_unit() {
  UnitSpec unit{.name = "unit", .parameters = {}};
  for (const auto& shape :
       std::vector<std::vector<int64_t>>{{1}, {3, 5}, {7, 17, 3}, {600, 5}, {17}, {2, 700}}) {
    const std::string name = format("p{}", unit.parameters.size());
    unit.parameters.push_back({name, shape, {{"weight", name, shape[0], {Initializer::Kind::normal, 1.0}}}});
  }
  return unit;
}

std::vector<Partition> all_partitions() {
  using Kind = PartitionKind;
  return {{Kind::flat}, {Kind::by_tensor}, {Kind::by_dim, 0}, {Kind::by_dim, 1}};
}

/// A unit of `plan` in the groups of the rank.
UnitLayout unit_layout(const std::shared_ptr<const GroupCommunicators>& groups, const ParallelPlan& plan) {
  return sharded_unit(groups->layout(), plan, {});
}

/// Small integers that differ between ranks and elements.
void write_gradient(Parameter& parameter, int rank) {
  const at::Tensor& gradient = parameter.gradient();
  parameter.add_gradient(at::arange(gradient.numel()).remainder(13).add(rank).view(gradient.sizes()));
}

/// Gathers, reduces twice and joins. Returns the first fault or "".
std::string check_unit(World& world, const Partition& partition, DType gather, DType reduce) {
  const UnitSpec spec = odd_unit();
  UnitStore whole(spec);
  whole.initialize(3);
  const auto groups = rank_groups(world);
  const ParallelPlan plan{.partition = partition, .gather = gather, .reduce = reduce};
  UnitStore store(spec, unit_layout(groups, plan), {}, *groups);
  store.initialize(3);
  if (!at::equal(store.whole(store.master()), whole.master())) return "initial values, joined";
  store.gather(at::empty({store.gathered_size()}, scalar_type(gather)));
  for (size_t i = 0; i < spec.parameters.size(); ++i) {
    if (!at::equal(store.parameters()[i].value().detach(), whole.master_view(i).to(scalar_type(gather)))) {
      return format("gathered {}", i);
    }
  }
  store.release();
  for (const bool accumulate : {false, true}) {
    store.start_gradient(at::full({store.gathered_size()}, 77.0, at::kFloat));
    for (size_t i = 1; i < store.parameters().size(); ++i)
      write_gradient(store.parameters()[i], world.rank());
    store.finish_gradient();
    store.reduce(accumulate);
    store.end_reduction();
  }
  UnitStore expected(spec);
  for (size_t i = 1; i < expected.parameters().size(); ++i) {
    at::Tensor sum = expected.parameters()[i].gradient();
    const int ranks = world.size();
    sum.copy_(
        at::arange(sum.numel()).remainder(13).mul(ranks).add(ranks * (ranks - 1) / 2).view(sum.sizes()));
  }
  if (!at::equal(store.whole(store.gradient()), expected.gradient() * 2)) return "gradient, joined";
  return "";
}

class UnitPartition : public ::testing::TestWithParam<int> {};

TEST_P(UnitPartition, GathersAndReducesLikeOneRank) {
  for (const Partition& partition : all_partitions()) {
    for (const DType gather : {DType::f32, DType::bf16}) {
      for (const DType reduce : {DType::f32, DType::bf16, DType::f16}) {
        const auto results = run_threads(
            GetParam(), [&](World& world) { return check_unit(world, partition, gather, reduce); });
        for (const std::string& result : results) {
          EXPECT_EQ(result, "") << partition_text(partition) << ", gathered in " << dtype_name(gather)
                                << ", reduced in " << dtype_name(reduce);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, UnitPartition, ::testing::Values(2, 3, 4, 8));

TEST(UnitPartition, GradientsAreSentInTheReduceDtype) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    RecordingWorld world(0, 4);
    const UnitSpec spec = odd_unit();
    const auto groups = rank_groups(world);
    UnitStore store(spec, unit_layout(groups, {.gather = DType::bf16, .reduce = dtype}), {}, *groups);
    store.start_gradient(at::zeros({store.gathered_size()}, at::kFloat));
    store.reduce(false);
    ASSERT_EQ(world.traffic().size(), 1U);
    EXPECT_EQ(world.traffic()[0].bytes, store.gathered_size() * dtype_bytes(dtype));
    EXPECT_EQ(store.gradient().scalar_type(), at::kFloat);
  }
}

TEST(UnitPartition, GradientsAreAccumulatedInFp32) {
  // 1 and then 256 times 2^-9: a bf16 sum would stay 1.
  const auto results = run_threads(2, [](World& world) {
    const UnitSpec spec = odd_unit();
    const auto groups = rank_groups(world);
    UnitStore store(spec, unit_layout(groups, {.reduce = DType::bf16}), {}, *groups);
    for (int step = 0; step <= 256; ++step) {
      store.start_gradient(at::empty({store.gathered_size()}, at::kFloat));
      for (Parameter& parameter : store.parameters()) {
        parameter.add_gradient(at::full_like(parameter.gradient(), step == 0 ? 0.5 : 1.0 / 1024));
      }
      store.reduce(step > 0);
      store.end_reduction();
    }
    const at::Tensor first = store.whole(store.gradient())[0];
    return format("{}", first.item<float>());
  });
  for (const std::string& result : results) EXPECT_EQ(result, "1.5");
}

TEST(UnitPartition, GradientsBelowTheRangeOfFp16SurviveItsReductions) {
  // 2^-30 is far below the smallest positive fp16 number, 2^-24.
  constexpr float kTiny = 0x1p-30F;
  const auto results = run_threads(4, [](World& world) {
    const UnitSpec spec = odd_unit();
    const auto hsdp = rank_groups(world, /*replicas=*/2);
    UnitStore store(spec, unit_layout(hsdp, {.reduce = DType::f16}), {}, *hsdp);
    store.start_gradient(at::empty({store.gathered_size()}, at::kFloat));
    for (Parameter& parameter : store.parameters()) {
      parameter.add_gradient(at::full_like(parameter.gradient(), kTiny));
    }
    store.reduce(/*accumulate=*/false);
    store.end_reduction();
    store.all_reduce();
    return format("{}", store.whole(store.gradient())[0].item<float>() / kTiny);
  });
  for (const std::string& result : results) EXPECT_EQ(result, "4");
}

}  // namespace
}  // namespace stepforge::testing
