// SPDX-License-Identifier: Apache-2.0
// Operations of libtorch on a simulated device.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "stepforge/kernels/compute_device.h"
#include "stepforge/sim/guard.h"
#include "stepforge/sim/machine.h"

namespace stepforge::sim {
namespace {

class SimOperations : public ::testing::Test {
 protected:
  SimOperations() { register_devices(); }
  at::Device device_{kType, 0};
};

TEST_F(SimOperations, ResultsAreThoseOfTheCpu) {
  const at::Tensor a = at::randn({5, 7});
  const at::Tensor b = at::randn({7, 3});
  const at::Tensor da = a.to(device_);
  const at::Tensor db = b.to(device_);
  EXPECT_TRUE(at::equal(at::mm(da, db).cpu(), at::mm(a, b)));
  EXPECT_TRUE(at::equal((da * 2 + da.t().contiguous().t()).cpu(), a * 2 + a));
  EXPECT_TRUE(at::equal(da.to(at::kBFloat16).cpu(), a.to(at::kBFloat16)));
  EXPECT_TRUE(at::equal(da.sum(1, /*keepdim=*/true).cpu(), a.sum(1, true)));
  EXPECT_TRUE(at::equal(da.narrow(0, 1, 3).view({-1}).cpu(), a.narrow(0, 1, 3).view({-1})));
  const at::Tensor out = at::empty({5, 3}, a.options().device(device_));
  at::Tensor into = out;
  at::mm_out(into, da, db);
  EXPECT_TRUE(at::equal(out.cpu(), at::mm(a, b)));
  const at::Tensor index = at::tensor({4, 0, 4}, at::kLong);
  EXPECT_TRUE(at::equal(da.index_select(0, index.to(device_)).cpu(), a.index_select(0, index)));
  EXPECT_EQ(da.sum().item<float>(), a.sum().item<float>());
}

}  // namespace
}  // namespace stepforge::sim
