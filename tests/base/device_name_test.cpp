// SPDX-License-Identifier: Apache-2.0
#include "stepforge/base/device_name.h"

#include <string>

#include <gtest/gtest.h>

namespace stepforge::testing {
namespace {

TEST(DeviceName, AKindMayHaveANumber) {
  for (const char* kind : {"auto", "cpu", "cuda", "sim"}) {
    const auto name = parse_device_name(kind);
    ASSERT_TRUE(name.has_value()) << kind;
    EXPECT_EQ(name->kind, kind);
    EXPECT_EQ(name->index, std::nullopt);
  }
  EXPECT_EQ(parse_device_name("cuda:12")->kind, "cuda");
  EXPECT_EQ(parse_device_name("cuda:12")->index, 12);
  EXPECT_EQ(parse_device_name("sim:0")->index, 0);
}

TEST(DeviceName, OtherNamesAreNoDevices) {
  for (const char* name : {"", "gpu", "CUDA", "cuda:", "cuda:-1", "cuda:1x", "cuda: 1", "cuda:0:1",
                           "cuda:1000", "cpu:0", "auto:0", ":1"})
    EXPECT_FALSE(parse_device_name(name).has_value()) << name;
}

}  // namespace
}  // namespace stepforge::testing
