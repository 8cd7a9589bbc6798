#include "metrics/flops.h"

#include <gtest/gtest.h>

namespace stepforge {
namespace {

TEST(PeakTflops, KnowsDevicesByTheNamesOfTheirDrivers) {
  EXPECT_EQ(peak_tflops_of("NVIDIA A100-SXM4-80GB"), 312);
  EXPECT_EQ(peak_tflops_of("NVIDIA H100 80GB HBM3"), 989);
  EXPECT_EQ(peak_tflops_of("NVIDIA H100 NVL"), 835);
  EXPECT_EQ(peak_tflops_of("NVIDIA H100 PCIe"), 756);
  EXPECT_EQ(peak_tflops_of("NVIDIA B300 SXM6 AC"), 2250);
  EXPECT_EQ(peak_tflops_of("AMD Instinct MI300X OAM"), 1300);
  EXPECT_EQ(peak_tflops_of("AMD Instinct MI355X"), 2500);
}

TEST(PeakTflops, DoesNotTakeOneModelForAnotherThatContainsItsName) {
  EXPECT_EQ(peak_tflops_of("NVIDIA H20"), 148);
  EXPECT_EQ(peak_tflops_of("NVIDIA H200"), 989);
  EXPECT_EQ(peak_tflops_of("NVIDIA B200"), 2250);
  EXPECT_EQ(peak_tflops_of("NVIDIA GB200"), 2500);
  EXPECT_EQ(peak_tflops_of("NVIDIA GB300"), 2500);
}

TEST(PeakTflops, IsZeroForUnknownDevices) {
  EXPECT_EQ(peak_tflops_of("AMD EPYC 9654"), 0);
  EXPECT_EQ(peak_tflops_of("NVIDIA A10"), 0);
  EXPECT_EQ(peak_tflops_of(""), 0);
}

}  // namespace
}  // namespace stepforge
