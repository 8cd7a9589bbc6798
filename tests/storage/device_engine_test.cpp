// SPDX-License-Identifier: Apache-2.0
// Groups of a device that has an engine of its own.
#include "stepforge/comm/device_engine.h"

#include <map>

#include <gtest/gtest.h>

#include "stepforge/storage/group_communicators.h"
#include "tests/support/rank_threads.h"

namespace stepforge::testing {
namespace {

/// Its calls are those of the control group.
class ControlOnly : public DeviceEngine {
 public:
  std::string name() const override { return "control"; }
  std::unique_ptr<Communicator> group(DeviceGroup group) override {
    groups[group.name] = group.ranks;
    failure = group.failure;
    return std::move(group.control);
  }

  std::map<std::string, std::vector<int>> groups;
  std::shared_ptr<CallFailure> failure;
};

TEST(DeviceEngine, MakesTheGroupsOfItsDeviceAndFailsThem) {
  const auto results = run_threads(2, [](World& world) {
    const auto engine = std::make_shared<ControlOnly>();
    ComputeDevice device = cpu_device();
    device.device = c10::Device(c10::DeviceType::Meta);
    device.engine = engine;
    const RankLayout layout = rank_layout({}, {.dims = {.pp = 2}}, {world.rank(), 2});
    const int group = layout.pipeline_group;
    const GroupCommunicators groups(
        world, layout, {{group, Lane::compute}, {group, Lane::send_next}, {group, Lane::receive_next}},
        "test ", device);
    std::string made;
    for (const auto& [name, ranks] : engine->groups) {
      made += name + ":";
      for (const int rank : ranks) made += format(" {}", rank);
      made += "; ";
    }
    std::vector<int32_t> values = {world.rank()};
    groups.at(group, Lane::compute)->all_reduce(writable_bytes_of(values), DType::i32);
    EXPECT_EQ(values[0], 1);
    EXPECT_EQ(groups.meter(group).bytes(), 4);
    groups.rethrow_failure();
    engine->failure->set(std::make_exception_ptr(PeerError("it broke")), "it broke");
    EXPECT_THROW(groups.rethrow_failure(), PeerError);
    EXPECT_THROW(groups.at(group, Lane::compute)->barrier(), PeerError);
    return made;
  });
  EXPECT_EQ(
      results[0],
      "test pp compute from rank 0: 0 1; test pp from rank 0 to 1: 0 1; test pp from rank 1 to 0: 0 1; ");
}

}  // namespace
}  // namespace stepforge::testing
